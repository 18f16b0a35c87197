"""Ten thousand calls from thirty-two threads: every one is counted once, and memory has a bound."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.prompt import ESTIMATE

HANDBOOK = "Everyone keeps to these rules of the house and cites them by number. " * 60
CALLS, THREADS, TURNS = 10_000, 32, 25


def _resident():
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc, which is not here")
def test_ten_thousand_calls_from_many_threads_stay_within_bounds():
    """No call is lost or counted twice, nothing fails, and the second half takes little more memory than the first."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    lock, held, done = threading.Lock(), [], 0

    def talk(number):
        """One conversation of some turns, which only grows."""
        nonlocal done
        messages = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": f"Task {number}."}]
        for turn in range(TURNS):
            body = {"model": "gpt-5.2", "messages": list(messages)}
            turned = session.adapter.begin(
                Request(body, "openai-chat", agent=f"role {turn % 4}", conversation=f"thread {number}", boundary=1)
            )
            turned.first_token()
            tokens = 1_300 + 30 * turn
            turned.finish({"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5})
            messages.append({"role": "assistant", "content": f"Answer {turn}."})
            messages.append({"role": "user", "content": f"Go on {turn}."})
            with lock:
                done += 1
                if done in (CALLS // 2, CALLS):
                    held.append(_resident())

    before = _resident()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(talk, range(CALLS // TURNS)))
    total = session.report().as_dict()["total"]
    assert total["calls"] == CALLS
    assert total["input_tokens"] == sum(1_300 + 30 * turn for turn in range(TURNS)) * (CALLS // TURNS)
    assert not session.failures
    assert held[1] - before < 150_000_000
    assert held[1] - held[0] < 75_000_000
