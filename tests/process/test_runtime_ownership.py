"""Flow control belongs to the process that created it."""

from __future__ import annotations

import os

import pytest

from odstream.errors import EngineOwnershipError
from odstream.runtime import ODSFlowController
from tests.fakes.engine import FakeClock, FakeEngine


@pytest.mark.spec("FLOW-02")
def test_a_forked_copy_may_not_use_it() -> None:
    controller = ODSFlowController(FakeEngine(FakeClock()))
    controller.poll()
    child = os.fork()
    if child == 0:
        try:
            controller.poll()
        except EngineOwnershipError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    controller.poll()
