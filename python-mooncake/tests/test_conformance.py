"""The answers of `mooncake.store`, case by case, compared with those of the official wheel.

See `conformance.py` for how a section is written.
"""

from conformance import STRICT, Suite

BASIC = """
master = Master()
connect(master.address)                                               -> 0
store.put('a', b'1')                                                  -> 0
store.put('a', b'1')                                                  -> 0
store.put('a', b'22')                                                 -> 0
store.get('a')                                                        -> b'1'
store.put_batch(['a', 'b'], [b'x', b'y'])                             -> 0
store.get_batch(['a', 'b'])                                           -> [b'1', b'y']
store.put_batch(['d', 'd'], [b'1', b'2'])                             -> 0
store.get('d')                                                        -> b'1'
store.put_batch(['e'], [])                                            -> -600
store.put_batch([], [])                                               -> 0
store.put_parts('parts', b'ab', b'cd')                                -> 0
store.get('parts')                                                    -> b'abcd'
store.put_parts('noparts'), store.is_exist('noparts')                 -> (0, 0)
store.put_parts('p', 'text')                                          -> raises TypeError
store.put_parts('p', memoryview(b'abcd').cast('H'))                   -> raises RuntimeError
store.get('missing')                                                  -> b''
store.get_batch(['a', 'missing'])                                     -> [b'1', b'']
store.get_batch([])                                                   -> [b'']
store.put('twelve', b'longer value')                                  -> 0
type(store.get_buffer('twelve')).__name__, store.get_buffer('twelve').size() -> ('BufferHandle', 12)
view = memoryview(store.get_buffer('twelve'))
view.format, view.readonly, view.shape                                -> ('b', False, (12,))
bytes(view), len(store.get_buffer('twelve'))                          -> (b'longer value', 12)
store.get_buffer('twelve').ptr() > 0                                  -> True
store.get_buffer('missing')                                           -> None
store.batch_get_buffer(['missing'])                                   -> [None]
[it and it.size() for it in store.batch_get_buffer(['a', 'missing'])] -> [1, None]
store.get_size('twelve')                                              -> 12
store.get_size('missing')                                             -> -704
store.is_exist('a'), store.is_exist('missing')                        -> (1, 0)
store.batch_is_exist(['a', 'missing', 'a'])                           -> [1, 0, 1]
store.batch_is_exist([])                                              -> []
store.get_hostname().split(':')[0], store.get_hostname() in master.segments() -> ('localhost', True)
store.health_check()                                                  -> 0
store.close()                                                         -> 0
"""

VALUES = """
import numpy as np
master = Master()
connect(master.address)                                               -> 0
store.put('bytes', b'abc'), store.get('bytes')                        -> (0, b'abc')
store.put('bytearray', bytearray(b'abc')), store.get('bytearray')     -> (0, b'abc')
store.put('view', memoryview(b'abc')), store.get('view')              -> (0, b'abc')
store.put('steps', memoryview(b'abcdef')[::2]), store.get('steps')    -> (0, b'ace') | fault
store.put('uint8', np.arange(3, dtype='u1')), store.get('uint8')      -> (0, bytes([0, 1, 2]))
wide = np.ones((2, 2), dtype='f4')
store.put('float32', wide), store.get('float32') == wide.tobytes()    -> (0, True) | fault
apart = np.arange(8, dtype='u1')[::2]
store.put('apart', apart), store.get('apart')                         -> (0, bytes([0, 2, 4, 6])) | fault
across = np.arange(6, dtype='u2').reshape(2, 3).T
store.put('across', across), store.get('across') == across.tobytes()  -> (0, True) | fault
store.put('str', 'abc')                                               -> raises TypeError
store.get('str')                                                      -> b''
store.put('int', 3)                                                   -> raises TypeError
store.put('None', None)                                               -> raises TypeError
store.put('list', [1, 2])                                             -> raises TypeError
store.put('z', b'')                                                   -> -600
store.is_exist('z'), store.get_size('z'), store.get('z')              -> (0, -704, b'')
store.put_batch(['z2', 'z3'], [b'', b'x'])                            -> -600
store.batch_is_exist(['z2', 'z3'])                                    -> [0, 0]
store.put_parts('z5', b'', b'q'), store.get('z5')                     -> (0, b'q')
store.put('k', b'v', nosuch=1)                                        -> raises TypeError
store.put('k', b'v', None)                                            -> raises TypeError
store.close()                                                         -> 0
"""

KEYS = r"""
master = Master()
connect(master.address)                                               -> 0
look = lambda key: (store.is_exist(key), store.get_size(key), store.get(key))
trip = lambda key: (store.put(key, b'val'), look(key), store.remove(key, force=True))
trip('')                                                              -> (-600, (0, -704, b''), -704)
trip(' ')                                                             -> (0, (1, 3, b'val'), 0)
trip('schlüssel-键')                                                  -> (0, (1, 3, b'val'), 0)
trip('a\0b')                                                          -> (0, (1, 3, b'val'), 0)
trip('a/b\nc')                                                        -> (0, (1, 3, b'val'), 0)
trip(b'\xff\x00\xfe')                                                 -> (0, (1, 3, b'val'), 0)
trip(b'plain')                                                        -> (0, (1, 3, b'val'), 0)
trip('k' * 10_000)                                                    -> (0, (1, 3, b'val'), 0)
trip('k' * 100_000)                                                   -> (0, (1, 3, b'val'), 0)
trip('k' * 1_000_000)                                                 -> (0, (1, 3, b'val'), 0)
store.put('\ud800', b'val')                                           -> raises TypeError
store.is_exist('\ud800')                                              -> raises TypeError
store.remove('\ud800', force=True)                                    -> raises TypeError
store.put(7, b'val')                                                  -> raises TypeError
store.get(7)                                                          -> raises TypeError
store.put(None, b'val')                                               -> raises TypeError
store.batch_is_exist('text')                                          -> raises TypeError
store.put('plain', b'1'), store.get(b'plain')                         -> (0, b'1')
store.put('a\0b', b'1'), store.is_exist('a')                          -> (0, 0)
store.put('\u00e9', b'1'), store.is_exist('e\u0301')                  -> (0, 0)
store.close()                                                         -> 0
"""

BUFFERS = """
master = Master()
connect(master.address)                                               -> 0
apart, memory = Memory(8192), Memory(16384, b'pattern')
q, p = apart.address, memory.address
store.put('o', b'o' * 4096)                                           -> 0
store.get_into('o', q, 8192), apart[:4096] == b'o' * 4096             -> (4096, True)
store.put_from('u', q, 4096), store.is_exist('u')                     -> (0, 1)
store.batch_get_into(['o'], [q], [8192])                              -> [4096]
store.batch_put_from(['u2'], [q], [4096])                             -> [0]
store.unregister_buffer(q)                                            -> -600
store.register_buffer(p, 8192)                                        -> 0
store.register_buffer(p, 8192)                                        -> -600
store.register_buffer(p + 4096, 8192)                                 -> -600
store.register_buffer(p, 0)                                           -> -600
store.register_buffer(0, 4096)                                        -> -600
store.get_into('o', p, 8192)                                          -> 4096
store.get_into('o', p, 4096)                                          -> 4096
memory[:8192] = b'-' * 8192
store.get_into('o', p, 4095), memory[:8192] == b'-' * 8192            -> (-600, True)
store.get_into('o', p, 0)                                             -> -600
store.get_into('missing', p, 8192)                                    -> -704
store.get_into('o', p + 4096, 4096)                                   -> 4096
memory[:8192] = bytes(range(256)) * 32
store.put_from('pf', p, 8192), store.get('pf') == memory[:8192]       -> (0, True)
store.put_from('pf', p, 8192)                                         -> 0
store.put_from('pf0', p, 0), store.is_exist('pf0')                    -> (0, 0)
store.batch_get_into(['o', 'missing', 'o'], [p, p, p], [4096, 4096, 100]) -> [4096, -704, -600]
store.batch_get_into(['o', 'o'], [p], [4096])                         -> [-600, -600]
store.batch_get_into([], [], [])                                      -> []
store.batch_put_from(['bp1', 'pf', 'bp2'], [p] * 3, [64] * 3)         -> [0, 0, 0]
store.batch_put_from(['same', 'same'], [p, p], [64, 64])              -> [0, 0]
store.batch_put_from(['x', 'y'], [p], [64])                           -> [-600, -600]
store.batch_put_from(['zero', 'one'], [p, p], [0, 1])                 -> [-600, 0]
store.batch_put_from_multi_buffers(['mb'], [[p, p + 4096]], [[10, 20]]) -> [0]
store.get('mb') == memory[:10] + memory[4096:4116]                    -> True
memory[8192:] = bytes(8192)
into = [[p + 8192, p + 12288]]
store.batch_get_into_multi_buffers(['mb'], into, [[10, 20]])          -> [30]
memory[8192:8202] == memory[:10], memory[12288:12308] == memory[4096:4116] -> (True, True)
store.batch_get_into_multi_buffers(['mb'], into, [[10, 19]])          -> [-600]
store.batch_get_into_multi_buffers(['mb'], into, [[10, 21]])          -> [-800]
store.batch_get_into_multi_buffers(['missing'], into, [[10, 20]])     -> [-704]
store.get_into_ranges([p], [['o']], [[[0, 100]]], [[[0, 4000]]], [[[10, 96]]]) -> [[[10, 96]]]
memory[:10] == b'o' * 10, memory[100:196] == b'o' * 96                -> (True, True)
store.get_into_ranges([p], [['o']], [[[0]]], [[[4090]]], [[[10]]])    -> [[[-600]]]
store.get_into_ranges([p], [['missing']], [[[0]]], [[[0]]], [[[10]]]) -> [[[-704]]]
store.get_into_ranges([p], [['o']], [[[0]]], [[[0]]], [[[0]]])        -> [[[0]]]
store.get_into_ranges([q], [['o']], [[[0]]], [[[0]]], [[[10]]])       -> [[[-600]]]
store.unregister_buffer(p)                                            -> 0
store.unregister_buffer(p)                                            -> -600
store.get_into('o', p, 8192)                                          -> 4096
store.put_from('after', p, 64)                                        -> 0
store.get_into('o', -1, 64)                                           -> raises TypeError
store.get_into('o', 1.0, 64)                                          -> raises TypeError
store.close()                                                         -> 0
"""

LEASE = """
master = Master('--default_kv_lease_ttl=2000', {mode})
connect(master.address)                                               -> 0
put = lambda *keys: [store.put(key, b'value') for key in keys]
after = lambda key, read: (put(key), read(), store.remove(key), store.remove(key, True))[2]
after('x', lambda: None)                                              -> 0
after('x', lambda: store.get('x'))                                    -> -706 | relaxed 0
after('x', lambda: store.is_exist('x'))                               -> -706 | relaxed 0
after('x', lambda: store.batch_is_exist(['x']))                       -> -706 | relaxed 0
after('x', lambda: store.get_size('x'))                               -> -706 | relaxed 0
after('x', lambda: store.get_buffer('x'))                             -> -706 | relaxed 0
after('x', lambda: store.put('x', b'other'))                          -> 0
put('t')                                                              -> [0]
store.get('t'), store.remove('t') -> (b'value', -706) | relaxed (b'value', 0)
until(lambda: store.remove('t') in (0, -704))                         -> True
put('f'), store.get('f'), store.remove('f', force=True), store.is_exist('f') -> ([0], b'value', 0, 0)
store.remove('missing'), store.remove('missing', True)                -> (-704, -704)
put('b1', 'b2'), store.get('b2')                                      -> ([0, 0], b'value')
store.batch_remove(['b1', 'b2', 'missing']) -> [0, -706, -704] | relaxed [0, 0, -704]
store.batch_remove(['b2'], force=True)                                -> [0] | relaxed [-704]
store.batch_remove([])                                                -> []
put('dup'), store.batch_remove(['dup', 'dup'])                        -> ([0], [0, -704])
put(*[f'rx_{{i}}' for i in range(5)])                                 -> [0, 0, 0, 0, 0]
store.is_exist('rx_0')                                                -> 1
store.remove_by_regex('^rx_')                                         -> 4 | relaxed 5
store.batch_is_exist([f'rx_{{i}}' for i in range(5)]) -> [1, 0, 0, 0, 0] | relaxed [0, 0, 0, 0, 0]
store.remove_by_regex('^rx_', force=True)                             -> 1 | relaxed 0
put(*[f'other_rx_{{i}}' for i in range(5)])                           -> [0, 0, 0, 0, 0]
store.remove_by_regex('rx_[12]$')                                     -> 2
store.remove_by_regex('nothing')                                      -> 0
store.remove_by_regex('(')                                            -> -600
store.remove_by_regex('')                                             -> 3
put('r1', 'r2', 'r3', 'r4'), store.get('r1')                          -> ([0, 0, 0, 0], b'value')
store.remove_all()                                                    -> 3 | relaxed 4
store.batch_is_exist(['r1', 'r2', 'r3', 'r4'])                        -> [1, 0, 0, 0] | relaxed [0, 0, 0, 0]
store.remove_all(force=True)                                          -> 1 | relaxed 0
store.remove_all()                                                    -> 0
store.close()                                                         -> 0
"""

PIN = """
master = Master('--default_kv_lease_ttl=60000')
connect(master.address)                                               -> 0
hard = config(with_hard_pin=True)
store.put('h', b'v', hard), store.remove('h'), store.is_exist('h')    -> (0, 0, 0)
store.put('h', b'v', hard), store.remove('h', force=True)             -> (0, 0)
store.put('h', b'v', hard), store.remove_all()                        -> (0, 1)
store.put('h', b'v', hard), store.batch_remove(['h'])                 -> (0, [0])
store.put('big', bytes(40 * MIB))                                     -> -600
store.put('huge', bytes(100 * MIB))                                   -> -600
memory = Memory(100 * MIB)
p = memory.address
store.register_buffer(p, memory.size)                                 -> 0
store.put_from('big', p, 40 * MIB)                                    -> 0
store.get('big'), store.get_buffer('big')                             -> (b'', None)
store.get_into('big', p, 40 * MIB)                                    -> 40 * MIB
store.put_from('huge', p, 100 * MIB)                                  -> -200
store.batch_put_from(['ok', 'huge'], [p, p], [MIB, 100 * MIB])        -> [0, -200]
store.put_batch(['ok2', 'big2'], [bytes(MIB), bytes(100 * MIB)])      -> -600
store.batch_is_exist(['ok2', 'big2'])                                 -> [0, 0]
store.remove_all(True) > 0                                            -> True
store.put('first', bytes(1000), hard)                                 -> 0
full = [store.put_from(f'h{i}', p, MIB, hard) for i in range(64)]
kept = full.count(0)
kept, full[-1]                                                        -> (63, -200)
store.put('unpinned', bytes(MIB))                                     -> -200
store.put('small', bytes(100), hard)                                  -> 0
sum(store.batch_is_exist([f'h{i}' for i in range(64)])) == kept       -> True
store.remove_all(True) == kept + 2                                    -> True
codes = [until(lambda: store.put_from(f'e{i}', p, MIB) == 0) for i in range(150)]
count(codes)                                                          -> {True: 150}
store.is_exist('e0'), store.is_exist('e149')                          -> (0, 1)
store.remove_all(True) > 30                                           -> True
leased = [(store.put_from(f'l{i}', p, MIB), store.is_exist(f'l{i}'))[0] for i in range(100)]
sorted(set(leased)), 55 < leased.count(0) < 65                        -> ([-200, 0], True)
store.close()                                                         -> 0
"""

CONFIG = """
import copy, pickle
from mooncake.store import ObjectDataType, ReplicateConfig, SoftPinAction
repr(ReplicateConfig()).startswith('<mooncake.store.ReplicateConfig object at') -> True
str(ReplicateConfig()).startswith('ReplicateConfig: { replica_num: 1, nof_replica_num: 0,') -> True
ReplicateConfig().data_type == ObjectDataType.UNKNOWN                 -> True
repr(ReplicateConfig().data_type)                                     -> '<ObjectDataType.UNKNOWN: 0>'
ReplicateConfig().dfs_replica_num, ReplicateConfig().nof_replica_num  -> (0, 0)
ReplicateConfig().group_ids                                           -> None
ReplicateConfig().prefer_alloc_in_same_node                           -> False
ReplicateConfig().preferred_nof_segments                              -> []
ReplicateConfig().preferred_segment, ReplicateConfig().preferred_segments -> ('', [])
ReplicateConfig().replica_num                                         -> 1
repr(ReplicateConfig().soft_pin_action)                               -> '<SoftPinAction.PRESERVE: 0>'
ReplicateConfig().soft_pin_ttl_ms                                     -> None
ReplicateConfig().with_hard_pin                                       -> False
config(nosuch=1)                                                      -> raises AttributeError
ReplicateConfig(replica_num=2)                                        -> raises TypeError
config(replica_num=-1)                                                -> raises TypeError
config(replica_num=2.0)                                               -> raises TypeError
config(with_hard_pin=1).with_hard_pin                                 -> True
config(with_soft_pin=True).soft_pin_action == SoftPinAction.ENABLE    -> True | fault
both = config(replica_num=2, with_hard_pin=True, preferred_segments=['a:1', 'b:2'], group_ids=['g'])
'preferred_segments: [a:1, b:2], preferred_nof_segments: []' in str(both) -> True
str(both).endswith('data_type: UNKNOWN, group_ids: [g] }')            -> True
config(group_ids=None).group_ids, config(group_ids=['a']).group_ids   -> (None, ['a'])
ReplicateConfig() == ReplicateConfig()                                -> False
copy.copy(ReplicateConfig())                                          -> raises TypeError
pickle.dumps(ReplicateConfig())                                       -> raises TypeError
enable = SoftPinAction.ENABLE
int(enable), enable.name, SoftPinAction(1) == enable                  -> (1, 'ENABLE', True)
sorted(ObjectDataType.__members__)[0], int(ObjectDataType.GENERAL)    -> ('ACTIVATION', 9)
master = Master()
connect(master.address)                                               -> 0
store.put('r0', b'x', config(replica_num=0)), store.is_exist('r0')    -> (-600, 0)
store.put('r1', b'x', config(replica_num=1))                          -> 0
store.put('r2', b'x', config(replica_num=2)), store.get('r2')         -> (0, b'x')
store.put('r3', b'x', config(replica_num=3)), store.get('r3')         -> (0, b'x')
store.put('s1', b'x', config(preferred_segment='nosuch:1')), store.get('s1') -> (0, b'x')
store.put('s2', b'x', config(preferred_segments=['nosuch:1'])), store.get('s2') -> (0, b'x')
store.put('s3', b'x', config(preferred_segment='a:1', preferred_segments=['b:2'])) -> 0
store.put('s4', b'x', config(preferred_segment=store.get_hostname())) -> 0
store.put('g1', b'x', config(group_ids=['g']))                        -> 0
store.put('g2', b'x', config(group_ids=['g', 'h']))                   -> -600
store.put('p1', b'x', config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=1000)) -> 0
store.put('p2', b'x', config(soft_pin_ttl_ms=1000))                   -> -600
store.put('p3', b'x', config(soft_pin_action=SoftPinAction.ENABLE, with_hard_pin=True)) -> 0
store.put('n', b'x', config(nof_replica_num=1))                       -> -600
store.put('d', b'x', config(dfs_replica_num=1))                       -> -1601
store.put('o', b'x', config(prefer_alloc_in_same_node=True))          -> -600
memory = Memory(64)
same = config(prefer_alloc_in_same_node=True)
store.batch_put_from_multi_buffers(['o'], [[memory.address]], [[64]], same) -> [0]
store.put('c', b'x', config=None)                                     -> raises TypeError
store.close()                                                         -> 0
"""

IDLE = """
from mooncake.store import MooncakeDistributedStore
{prepare}
memory = Memory(64)
p = memory.address
store.get('k')                                                        -> b''
store.get_batch(['k', 'l'])                                           -> [b'']
store.health_check()                                                  -> 1
store.put_from('k', p, 64)                                            -> -600
store.put('k', b'v')                                                  -> -600 | fault
store.put_parts('k', b'v')                                            -> -600 | fault
store.put_batch(['k'], [b'v'])                                        -> -600 | fault
store.get_buffer('k')                                                 -> None | fault
store.batch_get_buffer(['k', 'l'])                                    -> [None, None] | fault
store.is_exist('k')                                                   -> -600 | fault
store.batch_is_exist(['k', 'l'])                                      -> [-600, -600] | fault
store.get_size('k')                                                   -> -600 | fault
store.remove('k')                                                     -> -600 | fault
store.batch_remove(['k', 'l'])                                        -> [-600, -600] | fault
store.remove_all()                                                    -> -600 | fault
store.remove_by_regex('k')                                            -> -600 | fault
store.register_buffer(p, 64)                                          -> -600 | fault
store.unregister_buffer(p)                                            -> -600 | fault
store.get_into('k', p, 64)                                            -> -600 | fault
store.batch_get_into(['k', 'l'], [p, p], [64, 64])                    -> [-600, -600] | fault
store.batch_put_from(['k', 'l'], [p, p], [64, 64])                    -> [-600, -600] | fault
store.batch_put_from_multi_buffers(['k'], [[p]], [[64]])              -> []
store.batch_get_into_multi_buffers(['k'], [[p]], [[64]])              -> [-600] | fault
store.get_hostname()                                                  -> '' | fault
store.close()                                                         -> 0
"""

CLOSED = """
store.close()                                                         -> 0
store.setup('localhost', 'P2PHANDSHAKE', 64 * MIB, 32 * MIB, 'tcp', '', master.address) -> 0
store.get('old'), store.put('k', b'v'), store.get('k')                -> (b'', 0, b'v')
store.setup('localhost', 'P2PHANDSHAKE', 64 * MIB, 32 * MIB, 'tcp', '', master.address) -> 0
store.put('k', b'w'), store.get('k')                                  -> (0, b'w')
store.close()                                                         -> 0
"""

SETUP = """
from mooncake.store import MooncakeDistributedStore
master = Master()
arguments = ['localhost', 'P2PHANDSHAKE', 64 * MIB, 32 * MIB, 'tcp', '', master.address]
names = ['local_hostname', 'metadata_server', 'global_segment_size', 'local_buffer_size', 'protocol']
names += ['rdma_devices', 'master_server_addr']
def settle(*changes, **named):
    changed = dict(zip(names, arguments)) | dict(zip(names[::-1], changes[::-1])) | named
    NAMES['store'] = MooncakeDistributedStore()
    return store.setup(*(changed[name] for name in names))
in_time(30, lambda: settle(master_server_addr=f'127.0.0.1:{free_port()}')) -> -1 | fault
local = f'localhost:{free_port()}'
in_time(30, lambda: settle(local_hostname=local, master_server_addr=f'127.0.0.1:{free_port()}')) -> -600
in_time(30, lambda: settle(local_hostname=local, master_server_addr='nosuch.invalid:50051')) -> -600
in_time(30, lambda: settle(local_hostname=local, master_server_addr='10.255.255.1:50051')) -> -600
settle(local_hostname=local, master_server_addr='127.0.0.1')          -> -600
settle(local_hostname=local, master_server_addr='')                   -> -600 | fault
in_time(30, lambda: settle(metadata_server=f'http://127.0.0.1:{free_port()}/metadata')) -> -1
settle(metadata_server=master.metadata_url)                           -> 0
store.put('m', b'v'), store.get('m'), store.close()                   -> (0, b'v', 0)
settle(protocol='nosuch')                                             -> -1
settle(protocol='rdma')                                               -> 0 | ours -1
store.close()                                                         -> 0
settle(), store.get_hostname().startswith('localhost:')               -> (0, True)
12300 <= int(store.get_hostname().split(':')[1]) <= 14300             -> True
store.put('k', b'v'), store.get('k'), store.close()                   -> (0, b'v', 0)
local = f'localhost:{free_port()}'
settle(local_hostname=local), store.get_hostname() == local, store.close() -> (0, True, 0)
settle(global_segment_size=0), store.put('k', b'v'), ':' in store.get_hostname() -> (0, -200, True)
store.close()                                                         -> 0
settle(global_segment_size=1), store.put('k', b'v')                   -> (-600, -200)
store.close()                                                         -> 0
settle(global_segment_size=17 * MIB + 1), store.put('k', b'v'), store.close() -> (0, 0, 0)
settle(global_segment_size=2 * MIB), store.put('k', b'v'), store.close() -> (0, 0, 0) | fault
settle(local_buffer_size=0), store.put('k', b'v'), store.get('k'), store.close() -> (0, -600, b'', 0)
settle(global_segment_size=-1)                                        -> raises TypeError
settle(global_segment_size='64MB')                                    -> raises TypeError
MooncakeDistributedStore().setup('localhost', 'P2PHANDSHAKE')         -> raises TypeError
whole = dict(local_hostname='localhost', metadata_server='P2PHANDSHAKE', master_server_addr=master.address)
store = MooncakeDistributedStore()
store.setup(whole), store.put('k', b'v'), store.get('k'), store.close() -> (0, 0, b'v', 0)
store.setup(whole | dict(nosuch=1)), store.close()                    -> (0, 0)
store.setup(dict(metadata_server='P2PHANDSHAKE', master_server_addr=master.address)) -> -600
store.setup(whole | dict(global_segment_size=64 * MIB, local_buffer_size='0.25GB')), store.close() -> (0, 0)
store.setup(whole | dict(global_segment_size=512))                    -> -600
store.setup(**dict(zip(names, arguments))), store.close()             -> (0, 0)
store.setup(*arguments, None), store.close()                          -> (0, 0)
store.setup(*arguments, tenant_id='t', enable_ssd_offload=False), store.close() -> (0, 0)
store.setup(*arguments, nosuch=1)                                     -> raises TypeError nosuch
store.setup(config=whole), store.close()                              -> (0, 0)
"""

TWO = """
master = Master({mode})
a = Other(master.address, 64 * MIB)
connect(master.address, segment=0)                                    -> 0
store.put('x', b'from-b'), a("store.get('x')")                        -> (0, b'from-b')
a("store.put('y', b'from-a')"), store.get('y')                        -> (0, b'from-a')
store.put('y', b'other'), store.get('y')                              -> (0, b'from-a')
a('store.get_hostname()') in master.segments(), store.get_hostname() in master.segments() -> (True, False)
memory = Memory(20 * MIB, bytes(range(251)))
p = memory.address
store.put('large', memory.map), a("store.get_size('large')")          -> (0, 20 * MIB)
import hashlib
there = "__import__('hashlib').sha256(store.get('large')).hexdigest()"
hashlib.sha256(memory.map).hexdigest() == a(there)                    -> True
store.get_into('x', p, 8192), memory[:6]                              -> (6, b'from-b')
store.put_from('ru', p, 4096), store.get('ru') == memory[:4096]       -> (0, True)
store.batch_get_into(['x'], [p], [8192])                              -> [6]
store.batch_put_from(['ru2'], [p], [4096])                            -> [0]
store.register_buffer(p, 4096)                                        -> 0
store.get_into('x', p + 2, 8000)                                      -> 6
store.put_from('rp', p, 8192)                                         -> 0
a("store.get('x')"), store.remove('x') -> (b'from-b', -706) | relaxed (b'from-b', 0)
a('store.close()')                                                    -> 0
store.is_exist('y'), store.get('y')                                   -> (0, b'')
store.put('n', b'v')                                                  -> -200
"""

KILL = """
master = Master('--client_ttl=8')
a = Other(master.address, 64 * MIB)
connect(master.address, segment=0)                                    -> 0
memory = Memory(8192)
[a(f"store.put('k{i}', b'v' * 1000)") for i in range(8)]              -> [0, 0, 0, 0, 0, 0, 0, 0]
len(store.get('k0'))                                                  -> 1000
a.kill()
in_time(20, lambda: store.get('k0'))                                  -> b''
in_time(20, lambda: store.get_into('k1', memory.address, 8192)) in (-800, -704) -> True
in_time(20, lambda: store.get_batch(['k3', 'k4']))                    -> [b'', b'']
in_time(20, lambda: store.put('new', b'v')) in (-200, -704, -800)     -> True
until(lambda: (store.is_exist('k5'), store.put('new', b'v')) == (0, -200), 40) -> True
until(lambda: store.get_into('k6', memory.address, 8192) == -704, 40) -> True
store.get('k0')                                                       -> b''
c = Other(master.address, 64 * MIB)
store.put('k0', b'again'), store.get('k0')                            -> (0, b'again')
"""

FAILOVER = """
master = Master('--client_ttl=8')
a, c = Other(master.address, 64 * MIB), Other(master.address, 64 * MIB)
connect(master.address, segment=0)                                    -> 0
keys = [f'f{i}' for i in range(20)]
[store.put(key, key.encode(), config(replica_num=2)) for key in keys] == [0] * 20 -> True
store.put('f3', b'v', config(replica_num=3))                          -> 0
a.kill()
in_time(30, lambda: [store.get(key) == key.encode() for key in keys].count(True)) -> 20 | fault
until(lambda: store.put('gone', b'v') == 0)                           -> True
until(lambda: [store.get(key) == key.encode() for key in keys].count(True) == 20, 40) -> True
count(store.put(f'p{i}', b'v') for i in range(8))                     -> {0: 8}
"""

KILLMASTER = """
master = Master()
connect(master.address)                                               -> 0
memory = Memory(64)
store.put('k', b'v'), store.get('k')                                  -> (0, b'v')
master.kill()
in_time(30, lambda: store.put('n', b'v'))                             -> -900
in_time(30, lambda: store.get('k'))                                   -> b''
in_time(30, lambda: store.is_exist('k'))                              -> -900
in_time(30, lambda: store.batch_is_exist(['k']))                      -> [-900]
in_time(30, lambda: store.get_into('k', memory.address, 64))          -> -900
in_time(30, lambda: store.get_size('k'))                              -> -900
in_time(30, lambda: store.remove('k'))                                -> -900
in_time(30, lambda: store.remove_all())                               -> -900
until(lambda: store.health_check() == 2)                              -> True
master.start()
until(lambda: store.put('n', b'w') == 0)                              -> True
until(lambda: store.health_check() == 0)                              -> True
store.get('n')                                                        -> b'w'
store.get('k')                                                        -> b'' | ours b'v'
"""

TENANT = """
from mooncake.store import MooncakeDistributedStore
master = Master()
arguments = ['localhost', 'P2PHANDSHAKE', 64 * MIB, 32 * MIB, 'tcp', '', master.address]
one, two = MooncakeDistributedStore(), MooncakeDistributedStore()
one.setup(*arguments, tenant_id='one'), two.setup(*arguments, tenant_id='two') -> (0, 0)
one.put('k', b'a'), two.get('k'), two.is_exist('k')                   -> (0, b'a', 1)
two.put('k', b'b'), one.get('k'), two.get('k')                        -> (0, b'a', b'a')
one.remove_all(True), two.is_exist('k')                               -> (1, 0)
one.close(), two.close()                                              -> (0, 0)
"""

SET_UP_AND_CLOSED = (
    "master = Master()\nconnect(master.address)  -> 0\nstore.put('old', b'v')  -> 0\nstore.close()  -> 0"
)
SECTIONS = {
    "basic": BASIC,
    "values": VALUES,
    "keys": KEYS,
    "buffers": BUFFERS,
    "lease": LEASE.format(mode=""),
    "strict lease": LEASE.format(mode=STRICT),
    "pin": PIN,
    "config": CONFIG,
    "not set up": IDLE.format(prepare="store = MooncakeDistributedStore()"),
    "closed": IDLE.format(prepare=SET_UP_AND_CLOSED) + CLOSED,
    "setup": SETUP,
    "two": TWO.format(mode=""),
    "strict two": TWO.format(mode=STRICT),
    "kill": KILL,
    "failover": FAILOVER,
    "killmaster": KILLMASTER,
    "tenant": TENANT,
}


SUITE = Suite(SECTIONS)
test_a_call_answers_as_the_original_does = SUITE.test()


def test_conformance_table_is_valid():
    found = SUITE.lines("strict lease")
    assert sum(line.is_test for line in found) > 30
    removal = next(line for line in found if "'b1', 'b2', 'missing'" in line.code)
    assert (removal.official, removal.ours) == ("[0, -706, -704]", "[0, -706, -704]")
    removal = next(line for line in SUITE.lines("lease") if line.code == removal.code)
    assert (removal.official, removal.ours) == ("[0, -706, -704]", "[0, 0, -704]")
