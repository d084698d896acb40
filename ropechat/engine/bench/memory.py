"""Measuring memory bandwidth, which limits decoding."""

import threading
import time


class Memory:
    """Measures how fast threads read, each a part of an array far larger than the caches.

    It computes an OR over integers, which NumPy does without the GIL at the speed of the memory.
    """

    def __init__(self, megabytes: int) -> None:
        import numpy as np

        self._or = np.bitwise_or.reduce
        self._split = np.array_split
        self._array = np.ones(megabytes << 17, np.uint64)

    def read(self, threads: int) -> float:
        """Bytes per second of one pass over the array."""
        parts = self._split(self._array, threads)
        workers = [threading.Thread(target=self._or, args=(part,)) for part in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self._array.nbytes / (time.perf_counter() - start)
