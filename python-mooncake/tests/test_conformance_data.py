"""The answers of the upsert family, of ranged reads and of sessions, compared with the official wheel's.

See `conformance.py` for how a section is written.
"""

from conformance import STRICT, Suite

UPSERT = """
from array import array
master = Master('--default_kv_lease_ttl=60000', {mode})
connect(master.address)                                               -> 0
store.upsert('a', b'first'), store.get('a')                           -> (0, b'first')
store.upsert('a', b'other'), store.get('a')                           -> (0, b'other')
store.upsert('a', b'a longer value'), store.get('a')                  -> (0, b'a longer value')
store.upsert(key='a', value=b'named', config=config()), store.get('a') -> (0, b'named')
store.put('a', b'ignored'), store.get('a')                            -> (0, b'named')
store.upsert('n', b'v'), store.remove('n')                            -> (0, 0)
store.upsert('a', b'x') if store.get('a') else None                   -> 0
store.remove('a')                                                     -> 0
store.upsert('l', b'same'), store.get('l'), store.upsert('l', b'size') -> (0, b'same', 0)
store.remove('l')                                                     -> -706 | ours 0
store.upsert('l', b'again'), store.get('l')                           -> (0, b'again')
store.upsert('l', b'another size'), store.remove('l')                 -> (0, 0)
store.upsert('v', b'kept')                                            -> 0
store.upsert('v', b''), store.get('v')                                -> (-600, b'kept')
store.upsert('', b'x')                                                -> -600
store.upsert('v', bytes(33 * MIB)), store.get('v')                    -> (-600, b'kept')
store.upsert('v', b'x', config(replica_num=0)), store.get('v')        -> (-600, b'kept')
store.upsert('v', b'x', config(prefer_alloc_in_same_node=True)), store.get('v') -> (-600, b'kept')
store.upsert('v', b'x', config(group_ids=['g', 'h'])), store.get('v') -> (-600, b'kept')
store.upsert('v', b'x', config(soft_pin_ttl_ms=1000)), store.get('v') -> (-600, b'kept')
store.upsert('v', b'x', config(nof_replica_num=1))                    -> -600
store.upsert('v', 'text')                                             -> raises TypeError
store.upsert('v', None)                                               -> raises TypeError
store.upsert('v', 3)                                                  -> raises TypeError
store.upsert(3, b'x')                                                 -> raises TypeError
store.upsert('\\ud800', b'x')                                         -> raises TypeError
store.upsert('v', b'x', None)                                         -> raises TypeError
store.upsert('v', b'x', nosuch=1)                                     -> raises TypeError
store.upsert('v')                                                     -> raises TypeError
store.upsert(b'bytes', b'x'), store.get('bytes')                      -> (0, b'x')
store.upsert('wide', array('I', [1, 2, 3])), store.get_size('wide')   -> (0, 12) | fault
store.upsert('steps', memoryview(b'abcdef')[::2]), store.get('steps') -> (0, b'ace') | fault
grid = memoryview(bytes(range(6))).cast('B', (2, 3))
store.upsert('grid', grid), store.get('grid') == bytes(range(6))      -> (0, True)
store.close()                                                         -> 0
"""

UPSERT_PARTS = """
master = Master()
connect(master.address)                                               -> 0
store.upsert_parts('p', b'ab', bytearray(b'cd'), memoryview(b'ef')), store.get('p') -> (0, b'abcdef')
store.upsert_parts('p', b'', b'q'), store.get('p')                    -> (0, b'q')
store.upsert_parts('p'), store.get('p')                               -> (0, b'q')
store.upsert_parts('p', b'', b''), store.get('p')                     -> (0, b'q')
store.upsert_parts('new'), store.is_exist('new')                      -> (0, 0)
store.upsert_parts('p', memoryview(b'abcd').cast('H'))                -> raises RuntimeError 1-D
store.upsert_parts('p', memoryview(b'abcd').cast('B', (2, 2)))        -> raises RuntimeError 1-D
store.upsert_parts('p', 'text')                                       -> raises TypeError bytes-like str
store.upsert_parts('p', [1])                                          -> raises TypeError bytes-like list
store.upsert_parts('p', b'x', config())                               -> raises TypeError bytes-like
store.upsert_parts('p', b'x', config=config()), store.get('p')        -> (0, b'x')
store.upsert_parts('p', b'x', config=config(prefer_alloc_in_same_node=True)) -> -600
store.upsert_parts('', b'x')                                          -> -600
store.close()                                                         -> 0
"""

UPSERT_BATCH = """
master = Master()
connect(master.address)                                               -> 0
store.upsert_batch(['a', 'b'], [b'1', b'2']), store.get_batch(['a', 'b']) -> (0, [b'1', b'2'])
store.upsert_batch(['a', 'b'], [b'33', b'4']), store.get_batch(['a', 'b']) -> (0, [b'33', b'4'])
store.upsert_batch([], [])                                            -> 0
store.upsert_batch(['a'], []), store.get('a')                         -> (-600, b'33')
store.upsert_batch(['a', 'b'], [b'x', b'']), store.get_batch(['a', 'b']) -> (-600, [b'33', b'4'])
store.upsert_batch(['a', 'b'], [b'x', bytes(33 * MIB)]), store.get('a') -> (-600, b'33')
store.upsert_batch(['a', ''], [b'x', b'y']), store.get('a')           -> (-600, b'x')
store.upsert_batch(['d', 'd'], [b'1', b'2']), store.get('d')          -> (0, b'1')
store.upsert_batch(['d', 'e'], [b'1', b'2'], config(group_ids=['g'])) -> -600
store.upsert_batch(['d', 'e'], [b'1', b'2'], config(prefer_alloc_in_same_node=True)) -> -600
store.upsert_batch(('d', 'e'), (b'1', b'2'))                          -> 0
store.upsert_batch('de', [b'1', b'2'])                                -> raises TypeError
store.upsert_batch(['d'], ['text'])                                   -> raises TypeError
store.close()                                                         -> 0
"""

UPSERT_FROM = """
master = Master()
connect(master.address)                                               -> 0
memory = Memory(8192, b'0123456789')
p = memory.address
store.upsert_from('a', p, 10), store.get('a')                         -> (0, b'0123456789')
store.upsert_from('a', p + 5, 10), store.get('a')                     -> (0, b'5678901234')
store.upsert_from('a', p, 20), store.get_size('a')                    -> (0, 20)
store.upsert_from('a', p, 0), store.get_size('a')                     -> (0, 20)
store.upsert_from('a', 0, 0), store.get_size('a')                     -> (0, 20)
store.upsert_from('none', p, 0), store.is_exist('none')               -> (0, 0)
store.upsert_from('', p, 10)                                          -> -600
store.upsert_from('a', p, 10, config(prefer_alloc_in_same_node=True)) -> -600
store.upsert_from('a', -1, 10)                                        -> raises TypeError
store.upsert_from('a', 1.0, 10)                                       -> raises TypeError
store.upsert_from(key='a', buffer_ptr=p, size=10, config=config()), store.get_size('a') -> (0, 10)
store.batch_upsert_from(['a', 'b'], [p, p + 1], [3, 4])               -> [0, 0]
store.get_batch(['a', 'b'])                                           -> [b'012', b'1234']
store.batch_upsert_from(['a', 'b'], [p, p], [0, 5])                   -> [-600, 0]
store.get_batch(['a', 'b'])                                           -> [b'012', b'01234']
store.batch_upsert_from(['', 'b'], [p, p], [2, 2]), store.get('b')    -> ([-600, 0], b'01')
store.batch_upsert_from(['a', 'b'], [p], [3]), store.get('a')         -> ([-600, -600], b'012')
store.batch_upsert_from([], [], [])                                   -> []
store.batch_upsert_from(['d', 'd'], [p, p + 1], [4, 4]), store.get('d') -> ([0, 0], b'1234')
store.batch_upsert_from(['d', 'd'], [p, p + 1], [4, 6]), store.get('d') -> ([0, 0], b'123456')
store.batch_upsert_from(['d'], [p], [4], config(prefer_alloc_in_same_node=True)) -> [-600]
store.batch_upsert_from(['d', 'e'], [p, p], [4, 4], config(group_ids=['g'])) -> [-600, -600]
large = Memory(100 * MIB)
store.batch_upsert_from(['huge'], [large.address], [100 * MIB])       -> [-200]
store.upsert_from('d', large.address, 100 * MIB)                      -> -200
store.get('d')                                                        -> b'' | ours b'123456'
store.close()                                                         -> 0
"""

RANGES = """
master = Master('--default_kv_lease_ttl=60000', {mode})
connect(master.address)                                               -> 0
memory = Memory(8192, b'.')
p = memory.address
store.register_buffer(p, 4096)                                        -> 0
store.put('o', bytes(range(100))), store.put('o2', b'o' * 10)         -> (0, 0)
ranges = store.get_into_ranges
ranges([], [], [], [], [])                                            -> []
ranges([p], [[]], [[]], [[]], [[]])                                   -> [[]]
ranges([p], [['o']], [[[]]], [[[]]], [[[]]])                          -> [[[]]]
ranges([p], [['o', 'o2']], [[[0, 10], [20]]], [[[5, 7], [1]]], [[[3, 2], [4]]]) -> [[[3, 2], [4]]]
memory[:24] == bytes([5, 6, 7]) + b'.' * 7 + bytes([7, 8]) + b'.' * 8 + b'oooo' -> True
ranges([p, p], [['o']], [[[0]]], [[[0]]], [[[1]]])                    -> [[[-600]], [[-600]]]
ranges([p], [['o'], ['o']], [[[0]], [[0]]], [[[0]], [[0]]], [[[1]], [[1]]]) -> [[[-600]]]
ranges([p], [['o', 'o2']], [[[0, 1]]], [[[0]]], [[[1]]])              -> [[[-600, -600], [-600]]]
ranges([p], [['o', 'o2']], [[[0], [0]]], [[[0], [0]]], [[[1]]])       -> [[[-600], [-600]]]
ranges([p], [['o', 'o2']], [[[0, 1, 2], [0]]], [[[0, 1], [0]]], [[[1], [1]]]) -> [[[-600, -600, -600], [1]]]
ranges([p, p], [[], ['o']], [[]], [[]], [[]])                         -> [[], [[-600]]]
ranges([0, p], [['o'], ['o']], [[[0]], [[0]]], [[[0]], [[0]]], [[[1]], [[1]]]) -> [[[-600]], [[1]]]
ranges([p + 4096], [['o']], [[[0]]], [[[0]]], [[[1]]])                -> [[[-600]]]
ranges([p], [['o']], [[[4090, 0]]], [[[0, 0]]], [[[10, 10]]])         -> [[[-600, 10]]]
ranges([p], [['o']], [[[0, 0]]], [[[95, 0]]], [[[10, 10]]])           -> [[[-600, 10]]]
ranges([p], [['o']], [[[0]]], [[[2 ** 64 - 1]]], [[[10]]])            -> [[[-600]]]
ranges([p], [['o']], [[[2 ** 64 - 1]]], [[[0]]], [[[10]]])            -> [[[-600]]]
ranges([p], [['o', '']], [[[0], [0]]], [[[0], [0]]], [[[1], [1]]])    -> [[[1], [-704]]]
ranges([p], [['missing']], [[[0]]], [[[0]]], [[[0]]])                 -> [[[-704]]]
ranges([p], [['o']], [[[0]]], [[[100]]], [[[0]]])                     -> [[[0]]]
ranges([p], [['o']], [[[4096]]], [[[0]]], [[[0]]])                    -> [[[0]]]
ranges([p], [['o']], [[[9000]]], [[[0]]], [[[0]]])                    -> [[[-600]]]
ranges([p], [['o']], [[[0]]], [[[0]]], [[[-1]]])                      -> raises TypeError
ranges([p], 'x', [[[0]]], [[[0]]], [[[0]]])                           -> raises TypeError
one = [[[1], [1]], [[1]]]
ranges([p, p + 64], [['o', 'o'], ['o']], [[[0], [1]], [[0]]], [[[1], [2]], [[3]]], one) == one -> True
memory[0], memory[1], memory[64]                                      -> (1, 2, 3)
handle = store.get_buffer('o')
ranges([handle.ptr()], [['o2']], [[[0]]], [[[0]]], [[[5]]])           -> [[[5]]]
bytes(handle)[:6]                                                     -> b'ooooo' + bytes([5])
store.batch_put_session_start(['flight'], [10])                       -> [0]
ranges([p], [['flight']], [[[0]]], [[[0]]], [[[1]]])                  -> [[[-703]]]
store.put('leased', b'v'), ranges([p], [['leased']], [[[0]]], [[[0]]], [[[1]]]) -> (0, [[[1]]])
store.remove('leased') -> -706 | relaxed 0
store.close()                                                         -> 0
"""

GET_SESSION = """
master = Master('--default_kv_lease_ttl=60000', {mode})
connect(master.address)                                               -> 0
memory = Memory(8192, b'.')
p = memory.address
store.put('o', bytes(range(100))), store.put('o2', b'o' * 10)         -> (0, 0)
start, end = store.batch_get_session_start, store.batch_get_session_end
ranges = store.batch_get_into_multi_buffer_ranges
ranges(['o'], [[p]], [[10]], [[0]])                                   -> [-600]
start(['o', 'missing', ''])                                           -> [0, -704, -704]
start([])                                                             -> []
start(['o', 'o'])                                                     -> [0, 0]
ranges(['o'], [[p, p + 100]], [[10, 20]], [[0, 50]])                  -> [30]
memory[:10] == bytes(range(10)), memory[100:120] == bytes(range(50, 70)) -> (True, True)
start(['o2']), ranges(['o', 'o2'], [[p], [p + 200]], [[5], [10]], [[95], [0]]) -> ([0], [5, 10])
ranges(['o', 'o'], [[p], [p]], [[5], [6]], [[0], [1]])                -> [5, 6]
ranges(['o', 'o2'], [[p, p], [p]], [[5, 6], [4]], [[0, 95], [0]])     -> [-600, 4]
ranges(['o'], [[0]], [[5]], [[0]])                                    -> [-600]
ranges(['o', 'o2'], [[p], [p]], [[5, 6], [4]], [[0], [0]])            -> [-600, 4]
ranges(['o', 'o2'], [[p]], [[5], [4]], [[0], [0]])                    -> [-600, -600]
ranges(['o'], [[]], [[]], [[]])                                       -> [0]
ranges(['o'], [[p]], [[0]], [[0]])                                    -> [0]
ranges([], [], [], [])                                                -> []
ranges(['missing'], [[p]], [[1]], [[0]])                              -> [-600]
end(['o2']), ranges(['o2'], [[p]], [[1]], [[0]])                      -> (0, [-600])
end(['never']), end([])                                               -> (0, 0)
store.remove('o') -> -706 | relaxed 0
store.put('k', b'first') if store.is_exist('k') == 0 else None        -> 0
start(['k']), store.upsert('k', b'other')                             -> ([0], 0)
ranges(['k'], [[p]], [[5]], [[0]]), memory[:5]                        -> ([5], b'other')
store.upsert('k', b'longer value')                                    -> 0
ranges(['k'], [[p]], [[5]], [[0]])                                    -> [5] | ours [-707]
end(['k'])                                                            -> 0
start(['k']), store.remove('k', force=True), ranges(['k'], [[p]], [[5]], [[0]]) -> ([0], 0, [-707]) | fault
ranges(['k'], [[p]], [[5]], [[0]])                                    -> [-600] | fault
store.remove('k', force=True) in (0, -704)                            -> True
start(['k']), ranges(['k'], [[p]], [[5]], [[0]])                      -> ([-704], [-600])
start('text')                                                         -> raises TypeError
start(keys=['o2'])                                                    -> [0]
store.close()                                                         -> 0
"""

PUT_SESSION = """
master = Master('--default_kv_lease_ttl=60000')
connect(master.address)                                               -> 0
memory = Memory(8192, bytes(range(251)))
p = memory.address
start, ranges = store.batch_put_session_start, store.batch_put_from_multi_buffer_ranges
end, revoke = store.batch_put_session_end, store.batch_put_session_revoke
start(['s1'], [100])                                                  -> [0]
store.is_exist('s1'), store.get('s1')                                 -> (0, b'')
store.get_size('s1'), store.get_into('s1', p + 4096, 4096)            -> (-703, -703)
store.get_replica_desc('s1'), store.batch_get_replica_desc(['s1'])    -> ([], {})
store.remove('s1'), store.remove('s1', force=True)                    -> (-703, -703)
store.batch_get_session_start(['s1'])                                 -> [-703]
store.put('s1', b'ignored')                                           -> 0
store.is_exist('s1')                                                  -> 0
start(['s1'], [100])                                                  -> [-600]
ranges(['s1'], [[p, p + 60]], [[60, 40]], [[0, 60]])                  -> [100]
end(['s1'])                                                           -> [0]
store.get_size('s1'), store.get('s1') == memory[:100]                 -> (100, True)
start(['s1'], [100])                                                  -> [-705]
end(['s1']), end(['never']), revoke(['never'])                        -> ([-600], [-600], [-600])
start(['s2'], [10]), revoke(['s2']), store.is_exist('s2')             -> ([0], [0], 0)
revoke(['s2']), start(['s2'], [10]), revoke(['s2'])                   -> ([-600], [0], [0])
start(['t', 't'], [10, 10]), revoke(['t'])                            -> ([0, -705], [0])
start(['z', '', 'ok'], [0, 10, 10]), revoke(['ok'])                   -> ([-600, -600, 0], [0])
start(['g'], [10], config(group_ids=['a', 'b']))                      -> [-600]
start(['g'], [10], config(nof_replica_num=1, replica_num=2))          -> [-600]
start(['g'], [10], config(prefer_alloc_in_same_node=True)), revoke(['g']) -> ([0], [0])
start(['g'], [10], config(replica_num=2)), revoke(['g'])              -> ([0], [0])
start([], []), start(['a', 'b'], [1])                                 -> ([], [-600, -600])
start(['a', 'b'], [10, 20])                                           -> [0, 0]
ranges(['never'], [[p]], [[1]], [[0]])                                -> [-600]
ranges(['a', 'b'], [[p, p], [p]], [[5, 6], [20]], [[0, 5], [0]])      -> [-600, 20]
ranges(['a'], [[0]], [[5]], [[0]])                                    -> [-600]
ranges(['a'], [[p, p]], [[5]], [[0]])                                 -> [-600]
ranges(['a'], [[p]], [[0]], [[0]])                                    -> [0]
ranges(['a'], [[]], [[]], [[]])                                       -> [-702]
ranges(['a', 'b'], [[p]], [[5], [5]], [[0], [0]])                     -> [-600, -600]
ranges([], [], [], [])                                                -> []
ranges(['a'], [[p]], [[5]], [[2 ** 64 - 1]])                          -> [-600]
ranges(['a'], [[p + 20, p + 10]], [[5, 5]], [[5, 0]])                 -> [10]
end(['a', 'b', 'a'])                                                  -> [0, 0, 0]
store.get('a') == memory[10:15] + memory[20:25], store.get('b') == memory[:20] -> (True, True)
start(['e'], [1]), end(['e']), store.remove('e')                      -> ([0], [0], 0)
start(['part'], [10]), ranges(['part'], [[p]], [[3]], [[4]])          -> ([0], [3])
end(['part']), store.get_size('part')                                 -> ([0], 10)
store.get('part') == bytes(4) + memory[:3] + bytes(3)                 -> True | fault
start(['never written'], [10]), end(['never written']), store.get_size('never written') -> ([0], [0], 10)
start(['u'], [10]), store.upsert('u', b'upserted'), ranges(['u'], [[p]], [[10]], [[0]]) -> ([0], 0, [10])
end(['u']), store.get('u')                                            -> ([0], b'upserted')
start(['r'], [10]), store.upsert('r', b'upserted')                    -> ([0], 0)
revoke(['r'])                                                         -> [-700] | ours [0]
store.get('r')                                                        -> b'upserted'
start(['sum'], ['text'])                                              -> raises TypeError
start(keys=['named'], sizes=[1], config=config()), revoke(keys=['named']) -> ([0], [0])
# A put without space makes the original evict objects without a lease, some time later.
start(['g'], [100 * MIB])                                             -> [-200]
store.close()                                                         -> 0
"""

IDLE = """
from mooncake.store import MooncakeDistributedStore
{prepare}
memory = Memory(64)
p = memory.address
store.upsert('k', b'v')                                               -> -600
store.upsert_from('k', p, 64), store.upsert_from('k', p, 0)           -> (-600, -600)
store.upsert_parts('k', b'v'), store.upsert_parts('k')                -> (-600, -600)
store.upsert_batch(['k'], [b'v']), store.upsert_batch([], [])         -> (-600, -600)
store.batch_upsert_from(['k', 'l'], [p, p], [64, 64])                 -> [-600, -600]
store.batch_upsert_from([], [], [])                                   -> []
store.batch_get_session_start(['k'])                                  -> []
store.batch_get_into_multi_buffer_ranges(['k'], [[p]], [[1]], [[0]])  -> []
store.batch_get_session_end(['k'])                                    -> -1
store.batch_put_session_start(['k'], [1])                             -> []
store.batch_put_from_multi_buffer_ranges(['k'], [[p]], [[1]], [[0]])  -> []
store.batch_put_session_end(['k']), store.batch_put_session_revoke(['k']) -> ([], [])
store.get_into_ranges([p], [['k']], [[[0]]], [[[0]]], [[[1]]])        -> [] | fault
"""

TWO = """
master = Master()
a = Other(master.address, 64 * MIB)
connect(master.address, segment=0)                                    -> 0
memory = Memory(8192, bytes(range(251)))
p = memory.address
a("store.put('y', b'from-a')"), store.upsert('y', b'up'), a("store.get('y')") -> (0, 0, b'up')
a("store.upsert('y', b'a longer one')"), store.get('y')               -> (0, b'a longer one')
store.batch_put_session_start(['s'], [8])                             -> [0]
store.batch_put_from_multi_buffer_ranges(['s'], [[p, p + 4]], [[4, 4]], [[4, 0]]) -> [8]
a("store.is_exist('s')"), store.batch_put_session_end(['s'])          -> (0, [0])
a("store.get('s')")                                                   -> bytes([4, 5, 6, 7, 0, 1, 2, 3])
a("store.batch_put_session_start(['t'], [8])")                        -> [0]
store.batch_put_session_start(['t'], [8])                             -> [-705] | ours [0]
a("store.batch_put_session_revoke(['t'])")                            -> [0]
store.batch_get_session_start(['y'])                                  -> [0]
store.batch_get_into_multi_buffer_ranges(['y'], [[p, p + 100]], [[1, 6]], [[0, 2]]) -> [7]
memory[0:1], memory[100:106]                                          -> (b'a', b'longer')
store.close()                                                         -> 0
"""

PINS = """
from mooncake.store import SoftPinAction
master = Master('--default_kv_lease_ttl=1', '--allow_evict_soft_pinned_objects=false')
connect(master.address)                                               -> 0
hard, soft = config(with_hard_pin=True), config(soft_pin_action=SoftPinAction.ENABLE)
[store.put(key, bytes(1000), hard) for key in ('same', 'other', 'parts')] -> [0, 0, 0]
store.upsert('same', b'x' * 1000), store.upsert('other', b'x' * 2000) -> (0, 0)
store.upsert_parts('parts', b'x', b'y')                               -> 0
store.put('soft', bytes(1000), soft), store.upsert('soft', b'x' * 2000) -> (0, 0)
store.upsert('new', b'x' * 2000, hard), store.upsert('new', b'x' * 3000) -> (0, 0)
store.put('plain', bytes(1000))                                       -> 0
codes = [until(lambda: store.put(f'k{i}', bytes(MIB)) == 0) for i in range(150)]
set(codes)                                                            -> {True}
store.batch_is_exist(['same', 'other', 'parts', 'soft', 'new', 'plain']) -> [1, 1, 1, 1, 1, 0]
store.close()                                                         -> 0
"""

KILLMASTER = """
master = Master()
connect(master.address)                                               -> 0
memory = Memory(64)
store.put('k', b'v')                                                  -> 0
master.kill()
in_time(30, lambda: store.upsert('k', b'w'))                          -> -900
in_time(30, lambda: store.upsert_batch(['k', 'l'], [b'w', b'w']))     -> -900
in_time(30, lambda: store.batch_upsert_from(['k'], [memory.address], [4])) -> [-900]
in_time(30, lambda: store.batch_get_session_start(['k']))             -> [-900]
in_time(30, lambda: store.batch_put_session_start(['s'], [4]))        -> [-900]
master.start()
until(lambda: store.upsert('n', b'w') == 0)                           -> True
store.get('n')                                                        -> b'w'
"""

SET_UP_AND_CLOSED = "master = Master()\nconnect(master.address)  -> 0\nstore.close()  -> 0"
SECTIONS = {
    "upsert": UPSERT.format(mode=""),
    "strict upsert": UPSERT.format(mode=STRICT),
    "upsert parts": UPSERT_PARTS,
    "upsert batch": UPSERT_BATCH,
    "upsert from": UPSERT_FROM,
    "upsert pins": PINS,
    "ranges": RANGES.format(mode=""),
    "strict ranges": RANGES.format(mode=STRICT),
    "get session": GET_SESSION.format(mode=""),
    "strict get session": GET_SESSION.format(mode=STRICT),
    "put session": PUT_SESSION,
    "data, not set up": IDLE.format(prepare="store = MooncakeDistributedStore()"),
    "data, closed": IDLE.format(prepare=SET_UP_AND_CLOSED),
    "data, two": TWO,
    "data, killmaster": KILLMASTER,
}
SUITE = Suite(SECTIONS)
test_a_call_answers_as_the_original_does = SUITE.test()
