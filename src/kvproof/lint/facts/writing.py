"""How commands and JSON are written."""

from __future__ import annotations

from ..finding import Fact
from . import links

_REFUSED = "the engine refuses it at the command line"
FACTS = {
    "json-smart-quotes": Fact(
        "error", "{flag} has typographic quotes ({seen}); JSON takes straight ones only",
        "Forums and word processors put them in when a command is copied; " + _REFUSED
        + " (Invalid JSON: key must be a string).",
        'replace them with straight quotes (")', link=links.VLLM + "42348"),
    "json-single-quotes": Fact(
        "error", "{flag} has strings in single quotes; JSON takes double quotes only", _REFUSED.capitalize() + ".",
        "double quotes inside, single quotes around the whole", link=links.TRANSFER_CONFIG),
    "json-trailing-comma": Fact(
        "error", "{flag} has a comma before a closing bracket", "JSON does not allow it; " + _REFUSED + ".",
        "remove the comma", link=links.TRANSFER_CONFIG),
    "json-quotes-stripped": Fact(
        "error", "the shell takes the quotes inside of {flag} away", "Without single quotes around it the JSON reaches "
        "the engine as {{key:value}}; " + _REFUSED + ".", "put single quotes around the whole JSON",
        link=links.TRANSFER_CONFIG),
    "json-unquoted": Fact(
        "error", "{flag} has {seen} without quotes", "JSON takes names and texts in double quotes only; " + _REFUSED
        + ".", "put it in double quotes", link=links.TRANSFER_CONFIG),
    "json-python-literal": Fact(
        "error", "{flag} has Python's {seen}; JSON writes it in lower case, and None as null",
        _REFUSED.capitalize() + ".", "true, false or null", link=links.TRANSFER_CONFIG),
    "json-literal-quotes": Fact(
        "error", "{flag} has quotes around the JSON that no shell takes away",
        "In a list of arguments every character reaches the engine; " + _REFUSED + ".",
        "leave out the quotes around the braces", link=links.TRANSFER_CONFIG),
    "json-odd-space": Fact(
        "error", "{flag} has a space that JSON does not take for one",
        "Web pages put in non-breaking spaces; " + _REFUSED + ".", "replace it with a plain space",
        link=links.TRANSFER_CONFIG),
    "json-broken": Fact(
        "error", "{flag} is not readable as JSON: {detail}", _REFUSED.capitalize() + ".", "see the place",
        link=links.TRANSFER_CONFIG),
    "json-duplicate-key": Fact(
        "warning", "{flag} has the key {key} twice, and the last one counts", "Readers of JSON drop the first one "
        "without a word.", "keep one of them"),
    "json-not-text": Fact(
        "error", "{flag} is a map in YAML, but an argument is text",
        "Compose and Kubernetes take lists of strings; a map is refused, or reaches the engine as something else.",
        "put single quotes around the braces"),
    "odd-space": Fact(
        "error", "a non-breaking space between the words", "Shells take it for a part of the word, so the option is "
        "not recognised.", "replace it with a plain space"),
    "odd-dash": Fact(
        "error", "an option begins with {seen} instead of {right}", "Forums and word processors make one long dash of "
        "two short ones; the engine takes the option for a name.", "write {right}"),
    "odd-quotes": Fact(
        "error", "typographic quotes ({seen}) around an argument", "Shells take them for a part of the word.",
        "replace them with {right}"),
    "quote-unclosed": Fact(
        "error", "a quote ({seen}) that is never closed", "The shell waits for the rest of the command.",
        "close it"),
    "continuation-space": Fact(
        "error", "a backslash with spaces behind it", "It no longer joins the lines, so the options that follow are "
        "lost.", "remove what is behind the backslash"),
    "continuation-missing": Fact(
        "error", "{seen} begins a line of its own: the line above it does not end with a backslash",
        "The command above runs without it, and this line is an error of the shell.",
        "end the line above with a backslash"),
    "argument-glued": Fact(
        "error", "one list item holds an option and its value, with a space between them",
        "Each item is one argument, so the engine sees one long option that it does not know.",
        "make two items of it, or join them with ="),
    "flag-unknown": Fact(
        "error", "{program} has no option --{seen}; {near}", "It stops with unrecognized arguments.",
        "--{right}", link=links.ENGINE_ARGUMENTS),
    "tag-moves": Fact(
        "warning", "the image {image} has no tag that stays: {tag} is given to other builds",
        "What is pulled tomorrow is another engine, with other keys and other defects.",
        "name a version and its digest, as in {repository}:VERSION@sha256:..."),
    "tag-without-digest": Fact(
        "note", "the image {image} is not pinned by digest",
        "A tag can be given to another build; a digest cannot.",
        "docker buildx imagetools inspect {image}, then write its digest behind it"),
    "secret": Fact(
        "warning", "{what} stands in the paste ({masked})", "Whoever reads the file or the list of processes can use "
        "it; what was once in a paste should be revoked.",
        "name it by reference ({reference}), and revoke this one"),
}
