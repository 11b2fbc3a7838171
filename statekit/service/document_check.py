"""The check of a submitted document, in a process of its own.

The process imports the allowed modules and makes the job, as its run will. So a module that has
changed is read anew, and one that fails, hangs or takes too much memory does not affect the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence

from statekit.documents.job_document import job_from_json, job_to_json
from statekit.errors import StatekitError, StateTypeError, class_of_kind
from statekit.job.loader import check_runs_alone
from statekit.service.job_environment import job_environment
from statekit.shown import shown_error

_WITHIN_S = 15.0
_MEMORY_BYTES = 8 << 30


def checked_document(document: str, modules: Sequence[str], secrets: Sequence[str] = ()) -> str:
    """Return a document as this release writes it, after making its job in another process.

    Parameters:
        modules: packages and modules that it may import.
        secrets: names of environment variables that it may read.

    Raises:
        StateTypeError: it is not valid, names another module, has a password or a function without
            its digest, or has no operator; a module cannot be imported; or that takes too long.
    """
    asked = json.dumps({"document": document, "modules": list(modules)})
    with subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import check_from_input; check_from_input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=job_environment(secrets),
        process_group=0,
    ) as process:
        found = _answer(process, asked.encode())
    if "document" in found:
        canonical: str = found["document"]
        return canonical
    raise (class_of_kind(found["kind"]) or StateTypeError)(found["message"])


def _answer(process: subprocess.Popen[bytes], asked: bytes) -> dict[str, str]:
    """Return what the process of a check says, and end it with the processes of its group."""
    try:
        answer: dict[str, str] = json.loads(process.communicate(asked, _WITHIN_S)[0])
    except subprocess.TimeoutExpired:
        raise StateTypeError(
            f"the modules of the document were not imported within {_WITHIN_S:.0f} s: nothing was "
            "submitted. Let them do less when they are imported"
        ) from None
    except ValueError:
        raise StateTypeError(
            f"the modules of the document ended the process that imported them (exit code "
            f"{process.returncode}): nothing was submitted"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return answer


def check_from_input() -> None:
    """Check the document on the standard input. The main function of the process."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # modules may print
    asked = json.load(sys.stdin)
    try:
        job = job_from_json(asked["document"], asked["modules"], digests=True)
        check_runs_alone(job)
        if not job.plan.operators:
            raise StateTypeError(
                f"job {job.name!r} has no operator, and so no state: add one with process(), "
                "window() or an aggregate. Nothing was submitted"
            )
        found = {"document": job_to_json(job)}
    except StatekitError as error:
        found = {"kind": error.kind, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - of the user's module
        found = {"kind": StateTypeError.kind, "message": shown_error(error)}
    answers.write(json.dumps(found))
    answers.flush()
