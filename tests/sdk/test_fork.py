"""A child of ``os.fork`` asks by the clients that were wrapped before, whatever its parent was in the middle of."""

from __future__ import annotations

import pytest
from sdk_driver import RULES, creator, make_client
from test_lost_leader import asked

from cacheprefix.server import Queue, SimulatedProvider
from cacheprefix_sdk import role, wrap
from tests.fault_matrix import check_fork


@pytest.mark.slow
@pytest.mark.parametrize("api", RULES)
def test_a_child_that_is_forked_off_from_a_busy_process_asks_as_its_parent_did(api):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    with SimulatedProvider(RULES[api], Queue(["Fine."])) as provider:

        def run(session, replies):
            del replies
            said = []
            with make_client(api, provider) as plain:
                create = creator(plain if session is None else wrap(plain, session), api)
                for name in ("finder", "writer"):
                    with role(name, conversation="c"):
                        said.append(type(create(**asked(api))).__name__)
                        said.append(str(len(list(create(**asked(api), stream=True)))))
            return said

        check_fork(run)
