import threading

from rpl.retrieval.library.cache import LRUCache


def test_least_recently_used_goes_first():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (1, 3)
    assert (cache.statistics.hits, cache.statistics.misses, cache.statistics.size) == (3, 1, 2)
    assert cache.statistics.hit_rate == 0.75


def test_weights():
    cache = LRUCache(10)
    cache.put("a", 1, weight=6)
    cache.put("b", 2, weight=4)
    cache.put("a", 3, weight=2)
    cache.put("c", 4, weight=4)
    assert len(cache) == 3
    cache.put("big", 5, weight=11)
    assert cache.get("big") is None
    assert len(cache) == 3
    cache.put("d", 6, weight=10)
    assert len(cache) == 1


def test_zero_capacity_stores_nothing():
    cache = LRUCache(0)
    cache.put("a", 1)
    assert cache.get("a") is None


def test_clear():
    cache = LRUCache(3)
    cache.put("a", 1)
    cache.get("a")
    cache.clear()
    assert (len(cache), cache.statistics.hits, cache.statistics.hit_rate) == (0, 0, 0.0)


def test_threads_keep_the_bound_and_the_counts():
    cache = LRUCache(20)

    def work(offset):
        for i in range(500):
            cache.put((i * 7 + offset) % 50, i)
            cache.get((i * 3) % 50)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 20
    assert cache.statistics.hits + cache.statistics.misses == 8 * 500
