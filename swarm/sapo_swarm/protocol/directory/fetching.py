"""Fetching a directory: one GET of a file whose size is known before it is read. No redirects, cookies or compression."""

from __future__ import annotations

import aiohttp

from sapo_swarm.protocol.directory.signed_list import MAX_BYTES, Address, BadDirectory
from sapo_swarm.protocol.transport import open_session, why_not

TIMEOUT_S = 10.0


async def fetch(address: Address, timeout_s: float = TIMEOUT_S) -> bytes:
    """The file's bytes, not judged yet. Raises BadDirectory."""
    try:
        async with (
            open_session(address.fingerprint, timeout_s) as session,
            session.get(address.url, allow_redirects=False) as response,
        ):
            return await _body(response)
    except aiohttp.ServerFingerprintMismatch as error:
        raise BadDirectory(
            "It is behind another certificate than the one in your settings: do not trust it."
        ) from error
    except TimeoutError as error:
        raise BadDirectory("It does not answer in time.") from error
    except BadDirectory:
        raise
    except aiohttp.ClientSSLError as error:
        raise BadDirectory(
            "It cannot be reached: nobody vouches for its certificate, and its line names none."
        ) from error
    except (aiohttp.ClientError, OSError, EOFError, ValueError) as error:
        raise BadDirectory(f"It cannot be reached: {why_not(error).partition('. ')[0].rstrip('.')}.") from error


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Raises BadDirectory before a byte is read of what is no file of a known, small size."""
    if 300 <= response.status < 400:
        raise BadDirectory("It moved: redirects are not followed. Ask for its new address.")
    if response.status != 200:
        raise BadDirectory(f"There is none: its host answers {response.status}.")
    size = response.content_length
    if size is None:
        raise BadDirectory("Its host does not say how large it is, so it is not read.")
    if size > MAX_BYTES:
        raise BadDirectory(f"It has {size:,} bytes; a directory has {MAX_BYTES:,} at most.")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise BadDirectory("Its host sends it compressed, which was not asked for.")
    return await response.content.readexactly(size)
