"""HEALTHCHECK of an image: succeeds while the server in the container answers.

KVPROOF_HEALTH_URL names the address; without it, that of an engine with the OpenAI API on port 8000.
"""

from __future__ import annotations

import os
import sys
import urllib.request

URL = "http://127.0.0.1:8000/health"


def main() -> int:
    # Without a proxy: what HTTP_PROXY names is not in the container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(os.environ.get("KVPROOF_HEALTH_URL") or URL, timeout=5):
            return 0
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
