"""Word-problem templates of the nano models' data: words, number ranges, stories.

A template is (text, numbers, steps). `numbers` draws each variable from a kind
in `RANGES` ("a:n b:m"); a step is "result=left op right|phrase", where `{eq}` in
the phrase becomes the worked equation. The last result is the answer. Templates
in `UNSEEN` never reach training: scores on them are reported apart.
"""

_NAMES_TEXT = """
    Ada Amir Anna Bela Ben Bruno Cara Carlos Chen Clara Dana Diego Ella Emil Eva Farid Felix Finn Gina Greta Hana
    Hugo Ines Ivan Jack Jana Jonas Julia Kai Kofi Lara Lena Leo Lily Luca Maria Marta Max Mia Mina Nadia Nina Noah
    Nora Omar Oscar Paula Pedro Priya Rafa Rosa Sam Sara Sofia Tara Theo Tom Uma Vera Yuki Zoe
"""
NAMES = tuple(_NAMES_TEXT.split())

_ITEMS_TEXT = """
    apples balls bananas beads books bottles boxes bricks buttons cakes candles cards carrots coins cookies cups
    eggs flowers forks grapes hats jars kites lamps lemons marbles melons mugs nails notebooks nuts onions oranges
    pears pencils pens pies plates plums ribbons ropes shells shirts socks spoons stamps stickers stones tickets
    toys tulips
"""
ITEMS = tuple(_ITEMS_TEXT.split())

RANGES = {
    "easy": {"n": (5, 60), "m": (2, 20), "k": (2, 6), "p": (2, 12)},
    "hard": {"n": (60, 500), "m": (12, 60), "k": (4, 16), "p": (11, 39)},
}
"""Inclusive number ranges by level: n counts, m smaller counts, k multipliers, p prices."""

SEEN = {
    "more": (
        "{A} has {a} {i}. {B} has {b} more {i} than {A}. How many {i} do they have together?",
        "a:n b:m",
        ("x=a+b|{B} has {eq} {i}.", "y=a+x|Together they have {eq} {i}."),
    ),
    "fewer": (
        "{A} has {a} {i}. {B} has {b} fewer {i} than {A}. How many {i} do they have together?",
        "a:n b:m",
        ("x=a-b|{B} has {eq} {i}.", "y=a+x|Together they have {eq} {i}."),
    ),
    "times": (
        "{A} has {a} {i}. {B} has {k} times as many {i} as {A}. How many {i} do they have together?",
        "a:m k:k",
        ("x=a*k|{B} has {eq} {i}.", "y=a+x|Together they have {eq} {i}."),
    ),
    "shop": (
        "{A} buys {a} {i} for {p} dollars each and {b} {j} for {q} dollars each. How much does {A} pay?",
        "a:k p:p b:k q:p",
        ("x=a*p|The {i} cost {eq} dollars.", "y=b*q|The {j} cost {eq} dollars.", "z=x+y|{A} pays {eq} dollars."),
    ),
    "change": (
        "{A} has {a} dollars and buys {b} {i} for {p} dollars each. How many dollars are left?",
        "a:n b:k p:p",
        ("x=b*p|The {i} cost {eq} dollars.", "y=a-x|There are {eq} dollars left."),
    ),
    "boxes": (
        "A shop has {a} boxes with {b} {i} in each box. It sells {c} {i}. How many {i} are left?",
        "a:k b:m c:m",
        ("x=a*b|There are {eq} {i}.", "y=x-c|After the sale {eq} {i} are left."),
    ),
    "share": (
        "{A} has {a} {i} and finds {b} more. The {i} are shared equally among {k} children. "
        "How many {i} does each child get?",
        "a:n b:m k:k",
        ("x=a+b|There are {eq} {i}.", "y=x/k|Each child gets {eq} {i}."),
    ),
    "pages": (
        "{A} reads {a} pages a day for {b} days and then {c} pages more. How many pages does {A} read?",
        "a:m b:k c:m",
        ("x=a*b|In the first days {A} reads {eq} pages.", "y=x+c|In all {A} reads {eq} pages."),
    ),
    "rest": (
        "A book has {a} pages. {A} reads {b} pages a day for {k} days. How many pages are left?",
        "a:n b:m k:k",
        ("x=b*k|{A} reads {eq} pages.", "y=a-x|There are {eq} pages left."),
    ),
    "machine": (
        "A machine makes {a} {i} in an hour. It runs {h} hours a day. How many {i} does it make in {d} days?",
        "a:m h:k d:k",
        ("x=a*h|In a day it makes {eq} {i}.", "y=x*d|In {d} days it makes {eq} {i}."),
    ),
    "rows": (
        "A hall has {a} rows of {b} chairs. {c} chairs are taken. How many chairs are free?",
        "a:k b:m c:m",
        ("x=a*b|The hall has {eq} chairs.", "y=x-c|So {eq} chairs are free."),
    ),
    "bus": (
        "A bus starts with {a} people. At the first stop {b} people get on and {c} get off. "
        "At the next stop {d} people get on. How many people are on the bus?",
        "a:n b:m c:m d:m",
        (
            "x=a+b|After getting on there are {eq} people.",
            "y=x-c|After getting off there are {eq} people.",
            "z=y+d|At the end there are {eq} people.",
        ),
    ),
    "saving": (
        "{A} saves {a} dollars each week for {k} weeks and then spends {b} dollars. How many dollars are left?",
        "a:m k:k b:m",
        ("x=a*k|{A} saves {eq} dollars.", "y=x-b|There are {eq} dollars left."),
    ),
    "bags": (
        "{A} puts {a} {i} into bags of {k}. {A} already had {b} bags. How many bags does {A} have now?",
        "a:n k:k b:m",
        ("x=a/k|{A} fills {eq} bags.", "y=x+b|Now {A} has {eq} bags."),
    ),
    "pack": (
        "{A} buys {a} packs of {b} {i} and gives {c} {i} to {B}. How many {i} does {A} keep?",
        "a:k b:m c:m",
        ("x=a*b|{A} buys {eq} {i}.", "y=x-c|{A} keeps {eq} {i}."),
    ),
    "age": (
        "{A} is {a} years old. {B} is {k} times as old as {A}. How old will {B} be in {b} years?",
        "a:m k:k b:m",
        ("x=a*k|{B} is {eq} years old.", "y=x+b|Then {B} will be {eq} years old."),
    ),
    "garden": (
        "{A} plants {a} rows of {b} tulips and {c} rows of {d} roses. How many flowers does {A} plant?",
        "a:k b:m c:k d:m",
        ("x=a*b|There are {eq} tulips.", "y=c*d|There are {eq} roses.", "z=x+y|In all there are {eq} flowers."),
    ),
    "walk": (
        "{A} walks {a} steps to school and the same way back. {A} does this on {k} days. How many steps is that?",
        "a:n k:k",
        ("x=a+a|In a day {A} walks {eq} steps.", "y=x*k|In {k} days that is {eq} steps."),
    ),
    "baking": (
        "{A} bakes {a} trays of {b} {i}. {k} friends share them equally. How many {i} does each friend get?",
        "a:m b:k k:k",
        ("x=a*b|{A} bakes {eq} {i}.", "y=x/k|Each friend gets {eq} {i}."),
    ),
    "lost": (
        "{A} had {a} {i} and lost {b}. Then {B} gave {A} {c} {i}. How many {i} does {A} have now?",
        "a:n b:m c:m",
        ("x=a-b|After losing some {A} has {eq} {i}.", "y=x+c|Now {A} has {eq} {i}."),
    ),
    "three": (
        "{A} has {a} {i}, {B} has {b} {i} and {C} has {c} {i}. How many {i} do they have in all?",
        "a:n b:n c:n",
        ("x=a+b|{A} and {B} have {eq} {i}.", "y=x+c|In all they have {eq} {i}."),
    ),
    "team": (
        "A team wins {a} games and each win gives {k} points. It loses {b} points. How many points does it have?",
        "a:m k:k b:m",
        ("x=a*k|The wins give {eq} points.", "y=x-b|The team has {eq} points."),
    ),
    "wage": (
        "{A} earns {p} dollars an hour. {A} works {a} hours on Monday and {b} hours on Friday. "
        "How many dollars does {A} earn?",
        "p:p a:k b:k",
        ("x=a+b|{A} works {eq} hours.", "y=x*p|{A} earns {eq} dollars."),
    ),
    "farm": (
        "A farm has {a} hens. Each hen lays {k} eggs a week. The farmer sells {b} eggs. How many eggs are left?",
        "a:m k:k b:m",
        ("x=a*k|The hens lay {eq} eggs.", "y=x-b|There are {eq} eggs left."),
    ),
}

UNSEEN = {
    "library": (
        "A library has {a} books on each shelf and {k} shelves. {A} adds {b} books. How many books are there now?",
        "a:m k:k b:m",
        ("x=a*k|There are {eq} books.", "y=x+b|Now there are {eq} books."),
    ),
    "trip": (
        "{A} pays {p} dollars for each of {a} tickets and {b} dollars for the bus. How much does {A} pay?",
        "p:p a:k b:m",
        ("x=a*p|The tickets cost {eq} dollars.", "y=x+b|{A} pays {eq} dollars."),
    ),
    "market": (
        "{A} brings {a} {i} to a shop and sells {b} on Monday and {c} on Friday. How many {i} are left?",
        "a:n b:m c:m",
        ("x=a-b|After Monday {eq} {i} are left.", "y=x-c|After Friday {eq} {i} are left."),
    ),
    "class": (
        "A class has {a} girls and {b} boys. They sit in equal rows of {k}. How many rows are there?",
        "a:m b:m k:k",
        ("x=a+b|There are {eq} children.", "y=x/k|There are {eq} rows."),
    ),
    "gift": (
        "{A} gives {k} {i} to each of {a} friends and keeps {b}. How many {i} did {A} have?",
        "k:k a:m b:m",
        ("x=a*k|{A} gives {eq} {i}.", "y=x+b|{A} had {eq} {i}."),
    ),
    "both": (
        "{B} and {A} have {a} {i} together. {A} has {b} of them. {B} gets {c} more. How many {i} does {B} have now?",
        "a:n b:m c:m",
        ("x=a-b|{B} has {eq} {i}.", "y=x+c|Now {B} has {eq} {i}."),
    ),
}

CHAIN_OPENINGS = (
    "{A} starts with {n} {i}.",
    "{A} has {n} {i}.",
    "There are {n} {i} in a basket.",
    "A shop has {n} {i}.",
)
CHAIN_EVENTS = {
    "+": ("{B} brings {n} more.", "Then {n} more are added.", "{B} finds {n} more.", "{n} new ones arrive."),
    "-": ("{B} takes {n}.", "Then {n} are lost.", "{n} of them break.", "{B} gets {n} of them."),
    "*": ("Then the number grows to {n} times as many.", "Now there are {n} times as many."),
}
CHAIN_NEW_EVENTS = {
    "+": ("{B} gives {n} more.", "Then {B} adds {n}.", "{n} more are found."),
    "-": ("{n} are sold.", "Then {n} of them break.", "{B} breaks {n} of them."),
    "*": ("Then there are {n} times as many.", "Now the number grows to {n} times as many."),
}
"""Wordings of the split `unseen`: one event of a chain has one of these."""
CHAIN_QUESTION = "How many {i} are there at the end?"
CHAIN_LENGTHS = {"easy": (2, 3), "hard": (4, 6)}
