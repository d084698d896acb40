"""The memory probe: how fast threads read, which is what decoding competes with."""

import threading
import time


class Memory:
    """Bytes per second that threads read, each its own part of an array far larger than the caches.

    An OR over integers: NumPy does it without the GIL, as fast as memory comes.
    """

    def __init__(self, megabytes: int) -> None:
        import numpy as np

        self._or = np.bitwise_or.reduce
        self._split = np.array_split
        self._array = np.ones(megabytes << 17, np.uint64)

    def read(self, threads: int) -> float:
        """Bytes per second of one pass."""
        parts = self._split(self._array, threads)
        workers = [threading.Thread(target=self._or, args=(part,)) for part in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self._array.nbytes / (time.perf_counter() - start)
