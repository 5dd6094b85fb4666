"""The answers of the tensor calls, compared with the official wheel's. The sections need torch.

See `conformance.py` for how a section is written. `make check-torch` runs this in an environment with torch.
"""

from conformance import STRICT, Suite

BEGIN = """
import torch
import struct
from mooncake.store import MooncakeDistributedStore, ParallelAxis, ReadTarget, TensorParallelism
shown = lambda t: t if t is None or isinstance(t, int) else (str(t.dtype)[6:], list(t.shape), t.tolist())
same = lambda a, b: a is not None and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
grid = torch.arange(24, dtype=torch.float32).reshape(4, 6)
def axis(kind, rank=0, size=1, split_dim=None, expert_id=None, stage_id=None):
    made = ParallelAxis()
    made.kind, made.rank, made.size = kind, rank, size
    made.split_dim, made.expert_id, made.stage_id = split_dim, expert_id, stage_id
    return made
def par(*axes):
    made = TensorParallelism()
    made.axes = axes
    return made
def target(mode, *axes):
    made = ReadTarget()
    made.mode = mode
    made.parallelism = par(*axes) if axes else None
    return made
tp = lambda rank, size, dim: axis('tp', rank, size, dim)
def header(key):
    head = store.get(key)[:304]
    numbers = struct.unpack_from('<IHHiiIIQQ8q8qII', head)
    axes = [struct.unpack_from('<iiiiiiq', head, 176 + 32 * i) for i in range(numbers[25])]
    dims = numbers[4]
    return numbers[5], list(numbers[9:9 + dims]), list(numbers[17:17 + dims]), axes
"""
SET_UP = """
master = Master()
connect(master.address)                                               -> 0
"""

PLAIN = """
store.put_tensor('t', grid[:2, :3]), store.get_size('t')              -> (0, 328)
store.put_tensor('h', torch.arange(6, dtype=torch.float32).reshape(2, 3)) -> 0
first = '4e4f4f4d010030010000000002000000000000000000000030010000000000001800000000000000'
shape = '02000000000000000300000000000000' + 'ff' * 48
store.get('h').hex() == first + shape * 2 + '00' * 136 + struct.pack('<6f', *range(6)).hex() -> True
store.put_tensor('t', torch.ones(7)), list(store.get_tensor('t').shape) -> (0, [2, 3])
store.get_tensor('missing'), store.get_tensor('')                     -> (None, None)
shown(store.batch_get_tensor(['t', 'missing', 't'])[2])
    -> ('float32', [2, 3], [[0.0, 1.0, 2.0], [6.0, 7.0, 8.0]])
store.batch_get_tensor(['missing']), store.batch_get_tensor([])       -> ([None], [])
store.put('raw', b'twelve bytes'), store.get_tensor('raw')            -> (0, None)
store.put('zeros', bytes(1000)), store.get_tensor('zeros')            -> (0, None)
store.put_tensor('x', None), store.put_tensor('x', [1]), store.put_tensor('x', b'1') -> (-600, -600, -600)
store.put_tensor('x', grid.numpy())                                   -> -600
store.put_tensor('x', torch.nn.Parameter(grid))                       -> -600
class Sub(torch.Tensor): pass
class SubTensor(torch.Tensor): pass
store.put_tensor('x', grid.as_subclass(Sub))                          -> -600
store.put_tensor('subclass', grid.as_subclass(SubTensor)), same(store.get_tensor('subclass'), grid)
    -> (0, True)
store.put_tensor('x', grid.to_sparse()), store.put_tensor('x', grid.to('meta')) -> (-600, -600)
store.put_tensor('x', torch.quantize_per_tensor(grid, 0.5, 0, torch.qint8)) -> -600
store.put_tensor('x', torch.ones(2, dtype=torch.complex64))           -> -600
store.put_tensor('x', torch.ones(2).view(torch.float8_e4m3fnuz))      -> -600
store.put_tensor('x', torch.ones([1] * 9)), store.put_tensor('8', torch.ones([1] * 8)) -> (-600, 0)
store.put_tensor('', grid), store.is_exist('x')                       -> (-600, 0)
store.put_tensor('turned', grid.T), same(store.get_tensor('turned'), grid.T) -> (0, True)
store.put_tensor('sliced', grid[1:3, ::2]), same(store.get_tensor('sliced'), grid[1:3, ::2]) -> (0, True)
store.put_tensor('expanded', grid[:1].expand(3, 6)), same(store.get_tensor('expanded'), grid[:1].expand(3, 6))
    -> (0, True)
negated = torch.view_as_complex(torch.arange(6.).reshape(3, 2)).conj().imag
negated.is_neg(), store.put_tensor('negated', negated), store.get_tensor('negated').tolist()
    -> (True, 0, [-1.0, -3.0, -5.0])
store.put_tensor('scalar', torch.tensor(3.0)), shown(store.get_tensor('scalar'))
    -> (0, ('float32', [1], [3.0]))
store.get_size('scalar'), header('scalar')                            -> (308, (0, [], [], []))
store.put_tensor('empty', torch.empty((2, 0, 3), dtype=torch.int64)), store.get_size('empty') -> (0, 304)
shown(store.get_tensor('empty'))                                      -> ('int64', [2, 0, 3], [[], []])
store.put_tensor('grad', torch.ones(2, requires_grad=True)), store.get_tensor('grad').requires_grad
    -> (0, False)
own = store.get_tensor('h')
own.zero_().sum().item(), store.get_tensor('h').sum().item()          -> (0.0, 15.0)
own.data_ptr() % 16, own.storage_offset(), own.untyped_storage().nbytes() -> (0, 0, 24)
names = 'float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool float16 bfloat16'.split()
names += ['float8_e4m3fn', 'float8_e5m2']
bits = (torch.arange(96, dtype=torch.uint8) * 7 % 2).reshape(2, 48)
typed = [bits.view(getattr(torch, name)) for name in names]
store.batch_put_tensor(names, typed) == [0] * 15                      -> True
back = store.batch_get_tensor(names)
[a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(back,
    typed)] == [True] * 15
    -> True
[struct.unpack_from('<i', store.get(name), 8)[0] for name in names] == list(range(15)) -> True
store.put_tensor(b'bytes', grid), same(store.get_tensor('bytes'), grid) -> (0, True)
store.put_tensor(key='named', tensor=grid), store.get_tensor(key='named') is None -> (0, False)
store.put_tensor('x', grid, 1)                                        -> raises TypeError incompatible
store.put_tensor('x')                                                 -> raises TypeError incompatible
store.put_tensor(3, grid)                                             -> raises TypeError
store.get_tensor('\\ud800')                                           -> raises TypeError
store.close()                                                         -> 0
"""

BATCH = """
store.batch_put_tensor(['a', 'b', 'c', 'd'], [grid, None, torch.ones(1, dtype=torch.complex64), 'x'])
    -> [0, -600, -600, -600]
store.batch_is_exist(['a', 'b', 'c', 'd'])                            -> [1, 0, 0, 0]
store.batch_put_tensor(['e', 'e'], [grid, grid + 1]), same(store.get_tensor('e'), grid) -> ([0, 0], True)
store.batch_put_tensor(['', 'f'], [grid, grid])                       -> [-600, 0]
store.batch_put_tensor(['g', 'h'], [grid]), store.is_exist('g')       -> ([-600, -600], 0)
store.batch_put_tensor([], []), store.batch_put_tensor([], [grid])    -> ([], [])
store.batch_put_tensor(['g'], (grid,))                                -> raises TypeError
store.batch_put_tensor('g', [grid])                                   -> raises TypeError
store.batch_put_tensor(('g',), [grid])                                -> [0]
store.upsert_tensor('a', torch.ones(3)), shown(store.get_tensor('a'))
    -> (0, ('float32', [3], [1.0, 1.0, 1.0]))
store.upsert_tensor('a', None), list(store.get_tensor('a').shape)     -> (-600, [3])
store.upsert_tensor('', grid)                                         -> -600
store.batch_upsert_tensor(['a', 'n'], [grid, grid]), same(store.get_tensor('n'), grid) -> ([0, 0], True)
store.batch_upsert_tensor(['a', 'a'], [grid, grid + 1]), same(store.get_tensor('a'), grid + 1)
    -> ([0, 0], True)
store.batch_upsert_tensor(['a', 'b'], [None, grid])                   -> [-600, 0]
wrong = config(preferred_segments=['a', 'b'])
store.pub_tensor('p', grid, wrong), store.batch_pub_tensor(['p', 'q'], [grid, grid], wrong)
    -> (-600, [-600, -600])
store.pub_tensor('p', grid), same(store.get_tensor('p'), grid)        -> (0, True)
store.pub_tensor('p', grid + 1), same(store.get_tensor('p'), grid)    -> (0, True)
store.upsert_pub_tensor('p', grid + 1, config()), same(store.get_tensor('p'), grid + 1) -> (0, True)
store.upsert_pub_tensor('p', grid, wrong)                             -> -600
store.pub_tensor('s', grid, config(preferred_segments=['nosuch:1']))  -> 0
store.pub_tensor('r', grid, config(replica_num=2)), store.pub_tensor('r0', grid, config(replica_num=0))
    -> (0, -600)
store.pub_tensor('o', grid, config(prefer_alloc_in_same_node=True))   -> 0
store.pub_tensor('g1', grid, config(group_ids=['g'])), store.pub_tensor('g2', grid,
    config(group_ids=['g', 'h']))
    -> (0, -600)
store.batch_pub_tensor(['i', 'j'], [grid, grid], config(group_ids=['g'])) -> [-600, -600]
store.batch_pub_tensor(['i', 'j'], [grid, None], config(group_ids=['g', 'h'])) -> [0, -600]
store.batch_upsert_pub_tensor(['i', 'j'], [grid, grid], config())     -> [0, 0]
store.pub_tensor('k', grid, None)                                     -> raises TypeError
store.put_tensor('big', torch.empty(10 * MIB, dtype=torch.float32)), store.get_tensor('big') -> (0, None)
# A put without space makes the original evict objects without a lease, some time later.
store.upsert_tensor('a', torch.empty(80 * MIB, dtype=torch.uint8))    -> -200
store.get_tensor('a') is None                                         -> True | ours False
store.close()                                                         -> 0
"""

BUFFERS = """
memory = Memory(8192)
p = memory.address
store.put_tensor('t', grid), store.get_size('t')                      -> (0, 400)
got = store.get_tensor_into('t', p, 8192)
same(got, grid), got.data_ptr() == p + 304, memory[:400] == store.get('t') -> (True, True, True)
got[0, 0] = 9
struct.unpack_from('<f', memory.map, 304)[0]                          -> 9.0
same(store.get_tensor_into('t', p + 1, 400), grid)                    -> True
memory[:400] = store.get('t')
store.put_tensor_from('f', p, 400), store.get('f') == memory[:400]    -> (0, True)
store.put_tensor_from('g', p, 399), store.put_tensor_from('g', p, 401), store.put_tensor_from('g', p, 303)
    -> (-600, -600, -600)
store.put_tensor_from('g', 0, 400), store.put_tensor_from('', p, 400), store.is_exist('g') -> (-600, -600, 0)
memory[0:1] = b'x'
store.put_tensor_from('g', p, 400)                                    -> -600
memory[0:1] = b'N'
store.upsert_tensor_from('f', p, 400), store.upsert_tensor_from('f', p, 401) -> (0, -600)
store.batch_put_tensor_from(['i', 'j'], [p, p], [400, 400])           -> [0, 0]
store.batch_put_tensor_from(['k', 'l'], [p, p], [400, 401]), store.is_exist('k') -> ([-600, -600], 0)
store.batch_put_tensor_from(['k', 'l'], [p, 0], [400, 400])           -> [-600, -600]
store.batch_put_tensor_from(['k', 'l'], [p], [400])                   -> [-600, -600]
store.batch_put_tensor_from([], [], [])                               -> []
store.batch_upsert_tensor_from(['i', 'j'], [p, p], [400, 400])        -> [0, 0]
store.batch_upsert_tensor_from(['i', 'j'], [p, p], [400, 4])          -> [-600, -600]
store.put_tensor_from('g', -1, 400)                                   -> raises TypeError
store.get_tensor_into('missing', p, 8192), store.get_tensor_into('t', 0, 8192),
    store.get_tensor_into('t', p, 0)
    -> (None, None, None)
memory[:400] = b'-' * 400
store.get_tensor_into('t', p, 399), memory[:400] == b'-' * 400        -> (None, True)
store.put('raw', b'r' * 400), store.get_tensor_into('raw', p, 8192), memory[:400] == b'r' * 400
    -> (0, None, True)
store.put_tensor('empty', torch.empty(0, 3)), list(store.get_tensor_into('empty', p, 304).shape)
    -> (0, [0, 3])
[shown(it) and it.data_ptr() - p for it in store.batch_get_tensor_into(['t', 'i'], [p, p + 512], [512, 512])]
    -> [304, 816]
store.batch_get_tensor_into(['missing', 'raw'], [p, p + 512], [512, 512]) -> [None, None]
store.batch_get_tensor_into(['t', 't'], [p, 0], [512, 512])           -> [-600, -600]
store.batch_get_tensor_into(['t', 't'], [p], [512])                   -> [-600, -600]
store.batch_get_tensor_into([], [], [])                               -> []
store.get_tensor_into_cuda('t', grid), store.batch_get_tensor_into_cuda(['t', 'u'], [grid, grid])
    -> (-600, [-600, -600])
store.batch_get_tensor_into_cuda([], [])                              -> []
padded = bytearray(store.get('t')[:304] + bytes(16) + store.get('t')[304:])
struct.pack_into('<Q', padded, 24, 320)
store.put('padded', padded), same(store.get_tensor('padded'), grid)   -> (0, True)
memory[:416] = bytes(padded)
store.put_tensor_from('padded too', p, 416), store.get('padded too') == bytes(padded) -> (0, True)
def patched(at, layout, *numbers):
    head = bytearray(store.get('t'))
    struct.pack_into(layout, head, at, *numbers)
    store.upsert('patched', head)
    return store.get_tensor('patched') is not None
[patched(*it) for it in ((4, '<H', 2), (6, '<H', 300), (8, '<i', 15), (8, '<i', -1), (12, '<i', 9))]
    -> [False] * 5
[patched(*it) for it in ((16, '<I', 2), (24, '<Q', 303), (32, '<Q', 95), (40, '<q', -1), (56, '<q', 0))]
    -> [False] * 5
[patched(*it) for it in ((104, '<q', 5), (168, '<I', 5), (20, '<I', 7), (172, '<I', 7), (40, '<q', 77))]
    -> [False, False, True, True, True]
[patched(*it) for it in ((16, '<I', 1), (8, '<i', 6), (168, '<I', 1), (168, '<IIiiii', 1, 0, 4, 0, 1, 2))]
    -> [True, True, False, True]
[patched(*it) for it in ((168, '<IIiiiii', 1, 0, 1, 0, 0, 1, 2), (168, '<IIiiiii', 1, 0, 5, 0, 0, 1, 0))]
    -> [False, False]
store.close()                                                         -> 0
"""

TP = """
store.put_tensor_with_tp('a', grid, 7, 3, 1)                          -> 0
store.batch_is_exist(['a', 'a_tp_0', 'a_tp_1', 'a_tp_2', 'a_tp_3'])   -> [0, 1, 1, 1, 0]
header('a_tp_2')
    -> (1, [4, 6], [4, 2], [(1, 0, 2, 3, 1, 0, 2)])
[same(store.get_tensor_with_tp('a', rank, 3), grid[:, 2 * rank:2 * rank + 2]) for rank in range(3)]
    -> [True, True, True]
same(store.get_tensor('a_tp_1'), grid[:, 2:4]), store.get_tensor('a'), store.remove('a') -> (True, None, -704)
same(store.get_tensor_with_tp('a', 1, 99, 5), grid[:, 2:4])           -> True
store.get_tensor_with_tp('a', 3, 3), store.get_tensor_with_tp('a', -1, 3) -> (None, None)
store.put_tensor_with_tp('one', grid, 0, 1, 9), store.put_tensor_with_tp('zero', grid, 0, 0),
    header('zero')[0]
    -> (0, 0, 0)
same(store.get_tensor_with_tp('one', 5, 1), grid)                     -> True
store.put_tensor_with_tp('x', grid, 0, 5), store.put_tensor_with_tp('x', grid, 0, 8) -> (-600, -600)
store.put_tensor_with_tp('x', grid, 0, 2, 2), store.put_tensor_with_tp('x', grid, 0, 2, -1) -> (-600, -600)
store.put_tensor_with_tp('x', torch.tensor(1.), 0, 2), store.put_tensor_with_tp('x', None, 0, 2)
    -> (-600, -600)
store.put_tensor_with_tp('x', 'text', 0, 2), store.put_tensor_with_tp('x', grid.numpy(), 0, 2) -> (-600, -600)
store.put_tensor_with_tp('x', grid.to(torch.complex64), 0, 2), store.is_exist('x_tp_0') -> (-600, 0)
store.put_tensor_with_tp('parameter', torch.nn.Parameter(grid), 0, 2) -> 0
same(store.get_tensor_with_tp('parameter', 1, 2), grid[2:])           -> True
store.put_tensor_with_tp('none', torch.empty(0, 3), 0, 2), header('none_tp_1')
    -> (0, (1, [0, 3], [0, 3], [(1, 0, 1, 2, 0, 0, 0)]))
store.put('taken_tp_0', b'foreign'), store.put_tensor_with_tp('taken', grid, 0, 2), store.get('taken_tp_0')
    -> (0, 0, b'foreign')
store.put_tensor_with_tp('', grid, 0, 2), store.is_exist('_tp_1')     -> (0, 1)
store.pub_tensor_with_tp('p', grid, config(), 0, 2), store.is_exist('p_tp_1') -> (0, 1)
store.pub_tensor_with_tp('q', grid, config(group_ids=['g']), 0, 2)    -> -600
store.pub_tensor_with_tp('q', grid, config(group_ids=['g', 'h']), 0, 2) -> 0
store.pub_tensor_with_tp('s', grid, config(preferred_segments=['a', 'b']), 0, 2) -> -600
store.batch_put_tensor_with_tp(['b', 'c', 'd'], [grid, None, torch.ones(3, 3)], 0, 2) -> [0, -600, -600]
store.batch_put_tensor_with_tp(['e', 'f'], [grid, 'text'], 0, 2), store.is_exist('e_tp_0')
    -> ([-600, -600], 0)
store.batch_put_tensor_with_tp(['e', 'f'], [grid], 0, 2), store.batch_put_tensor_with_tp([], [], 0, 2)
    -> ([-600, -600], [])
store.batch_put_tensor_with_tp(base_keys=['e'], tensors_list=[grid], tp_size=2, split_dim=1) -> [0]
store.batch_pub_tensor_with_tp(['i', 'j'], [grid, grid], config(group_ids=['g', 'h']), 0, 2) -> [0, 0]
store.batch_pub_tensor_with_tp(['k', 'l'], [grid, grid], config(group_ids=['g']), 0, 2) -> [-600, -600]
[it is None for it in store.batch_get_tensor_with_tp(['b', 'missing'], 1, 2)] -> [False, True]
store.batch_get_tensor_with_tp(['b'], 1, 2, 0)                        -> raises TypeError
store.put_tensor_with_tp('b', grid, 2 ** 31)                          -> raises TypeError
memory = Memory(8192)
p = memory.address
got = store.get_tensor_with_tp_into('a', p, 8192, 1, 3)
same(got, grid[:, 2:4]), got.data_ptr() == p + 304                    -> (True, True)
[it is None for it in store.batch_get_tensor_with_tp_into(['a', 'missing'], [p, p + 999], [999, 999], 1, 3)]
    -> [False, True]
store.batch_get_tensor_with_tp_into(['a', 'a'], [p, 0], [999, 999], 1, 3) -> [-600, -600]
store.put_tensor('whole', grid), store.get_into('whole', p, 8192)     -> (0, 400)
store.put_tensor_with_tp_from('from', p, 400, 0, 3, 1)                -> 0
[store.get(f'from_tp_{i}') == store.get(f'a_tp_{i}') for i in range(3)] -> [True, True, True]
store.put_tensor_with_tp_from('x', p, 401, 0, 2), store.put_tensor_with_tp_from('x', 0, 400, 0, 2)
    -> (-600, -600)
store.put_tensor_with_tp_from('plain', p, 400), store.is_exist('plain') -> (0, 1)
store.batch_put_tensor_with_tp_from(['m', 'n', 'o'], [p, p, 0], [400, 401, 400], 0, 2) -> [0, -600, -600]
store.batch_put_tensor_with_tp_from(['r', 's'], [p, p], [400, 401]), store.is_exist('r') -> ([-600, -600], 0)
store.batch_put_tensor_with_tp_from([], [], [], 0, 2)                 -> []
store.get_into('a_tp_1', p, 8192), store.put_tensor_with_tp_from('again', p, 336, 0, 2, 1) -> (336, 0)
header('again_tp_1')
    -> (1, [4, 2], [4, 1], [(1, 0, 1, 2, 1, 0, 1)])
store.remove_by_regex('^a_tp_', True)                                 -> 3
store.close()                                                         -> 0
"""

CLASSES = """
import copy, pickle
a = ParallelAxis()
(a.kind, a.rank, a.size, a.split_dim, a.expert_id, a.stage_id)        -> ('', 0, 1, None, None, None)
TensorParallelism().axes, ReadTarget().mode, ReadTarget().parallelism -> ([], 'as_stored', None)
a.kind = 'anything'
a.rank = True
a.rank                                                                -> 1
exec('a.rank = 1.5')                                                  -> raises TypeError
exec('a.rank = "1"')                                                  -> raises TypeError
exec('a.kind = None')                                                 -> raises TypeError
exec('a.split_dim = "x"')                                             -> raises TypeError
exec('a.nosuch = 1')                                                  -> raises AttributeError
ParallelAxis('tp')                                                    -> raises TypeError
TensorParallelism([a])                                                -> raises TypeError
copy.copy(a)                                                          -> raises TypeError
pickle.dumps(TensorParallelism())                                     -> raises TypeError
ParallelAxis() == ParallelAxis()                                      -> False
made = par(a)
a.rank = 5
made.axes[0].rank                                                     -> 1
made.axes[0].rank = 7
made.axes[0].rank                                                     -> 7
made.axes.append(a)
len(made.axes)                                                        -> 1
made.axes = (a, a)
len(made.axes)                                                        -> 2
exec('made.axes = [1]')                                               -> raises TypeError
wanted = ReadTarget()
wanted.mode = 'FULL'
wanted.mode                                                           -> 'full'
exec('wanted.mode = "other"')
    -> raises RuntimeError Unsupported ReadTarget mode
exec('wanted.mode = None')                                            -> raises TypeError
wanted.parallelism = made
made.axes[0].rank = 8
wanted.parallelism.axes[0].rank                                       -> 5
wanted.parallelism.axes[0].rank = 6
wanted.parallelism.axes[0].rank                                       -> 6
exec('wanted.parallelism = 3')                                        -> raises TypeError
repr(ParallelAxis), repr(ReadTarget)
    -> ("<class 'mooncake.store.ParallelAxis'>", "<class 'mooncake.store.ReadTarget'>")
"""

PARALLEL_WRITES = """
write = store.put_tensor_with_parallelism
def keys(prefix):
    found = fetch(master.metrics, '/get_all_keys')[1].split()
    return sorted(key for key in found if key.startswith(prefix))
write('plain', grid), header('plain')[0]                              -> (0, 0)
[write('tp', grid[:, 3 * r:3 * r + 3], par(tp(r, 2, 1))) for r in range(2)] -> [0, 0]
keys('tp')
    -> ['tp__parallelism_manifest', 'tp_tp_0', 'tp_tp_1']
header('tp_tp_1')
    -> (1, [4, 6], [4, 3], [(1, 0, 1, 2, 1, 0, 3)])
manifest = '4e414d57010060000000000002000000010000000200000000000000' + '00000000'
manifest += '04000000000000000600000000000000' + 'ff' * 48
store.get('tp__parallelism_manifest').hex() == manifest               -> True
write('g', grid, par(axis('dp', 1, 4))), keys('g')                    -> (0, ['g__dp_1of4'])
header('g__dp_1of4')
    -> (1, [4, 6], [4, 6], [(0, 0, 1, 4, -1, 0, 0)])
write('h', grid, par(axis('EP', 1, 4, None, 7))), write('h', grid, par(axis('pp', 1, 4, None, None, 3)))
    -> (0, 0)
keys('h')
    -> ['h__ep_1of4_eid7', 'h__pp_1of4_sid3']
header('h__ep_1of4_eid7')[3], header('h__pp_1of4_sid3')[3]
    -> ([(2, 0, 1, 4, -1, 7, 0)], [(3, 0, 1, 4, -1, 3, 0)])
write('i', grid, par(axis('dp', 0, 2), axis('ep', 1, 4, None, 7), axis('pp', 0, 1, None, None, 0))), keys('i')
    -> (0, ['i__dp_0of2__ep_1of4_eid7__pp_0of1_sid0'])
write('j', grid, par(tp(0, 2, 0), axis('dp', 1, 2))), keys('j')
    -> (0, ['j__dp_1of2__tp_0of2_sd0', 'j__parallelism_manifest'])
header('j__dp_1of2__tp_0of2_sd0') -> (1, [4, 6], [2, 6], [(1, 0, 0, 2, 0, 0, 2), (0, 1, 1, 2, -1, 0, 0)])
four = par(axis('pp', 1, 3, None, None, 9), tp(1, 3, 1), axis('dp', 0, 1), axis('ep', 0, 2, None, 4))
write('k', grid, four), keys('k__dp') -> (0, ['k__dp_0of1__tp_1of3_sd1__ep_0of2_eid4__pp_1of3_sid9'])
write('x', grid, par(axis('ep', 0, 2, None, -5))), keys('x')          -> (0, ['x__ep_0of2_eid-5'])
write('y', grid, par(axis('dp', 0, 2, None, None, 3))), keys('y')     -> (0, ['y__dp_0of2_sid3'])
write('a', grid, None, config(), tp(0, 2, 0)), keys('a') -> (0, ['a__writer_0of2_sd0', 'a__writer_manifest'])
header('a__writer_0of2_sd0')
    -> (1, [4, 6], [2, 6], [(1, 0, 0, 2, 0, 0, 2)])
bad = lambda *axes, **more: write('bad', grid, par(*axes), **more)
bad(), bad(axis('xx')), bad(axis('tp ', 0, 2, 0)), bad(axis('tp', 0, 2)), bad(axis('dp', 0, 2, 0))
    -> (-600, -600, -600, -600, -600)
bad(axis('ep', 0, 2)), bad(axis('pp', 0, 2)), bad(axis('dp', 2, 2)), bad(axis('dp', -1, 2)),
    bad(axis('dp', 0, 0))
    -> (-600, -600, -600, -600, -600)
bad(axis('dp'), axis('dp')), bad(*[axis('dp')] * 5), bad(tp(0, 2, 2)), bad(tp(0, 2, -1))
    -> (-600, -600, -600, -600)
bad(tp(0, 4, 1), axis('dp')), bad(axis('dp'), writer_partition=tp(0, 2, 0)) -> (-600, -600)
[write('bad', grid, None, config(), it) for it in (tp(2, 2, 0), tp(0, 5, 0), tp(0, 2, 2), {'rank': 0}, 3)]
    -> [-600] * 5
write('bad', grid, None, config(), axis('tp', 0, 2))                  -> raises RuntimeError cast
write('bad', grid, 3), write('bad', None), write('bad', grid.to(torch.complex64), par(tp(0, 2, 0)))
    -> (-600, -600, -600)
keys('bad')                                                           -> []
write('s', grid, None, config(preferred_segments=['a', 'b']))         -> -600
write('s', grid, par(tp(0, 2, 0)), config(preferred_segments=['a', 'b'])) -> 0
write('o', grid, par(tp(0, 2, 0)), config(prefer_alloc_in_same_node=True)), keys('o') -> (-600, ['o_tp_0'])
write('e', grid, par(tp(0, 2, 0)), config(group_ids=['g', 'h'])), write('e', grid, par(tp(0, 2, 0)),
    config(group_ids=['g']))
    -> (-600, 0)
write('', grid, par(tp(0, 2, 0))), keys('_')
    -> (0, ['__parallelism_manifest', '_tp_0'])
write('tp', grid[:, :2], par(tp(0, 3, 1))), header('tp_tp_0')[3]      -> (0, [(1, 0, 0, 2, 1, 0, 3)])
store.upsert_tensor_with_parallelism('tp', grid[:, :2], par(tp(0, 3, 1))), header('tp_tp_0')[3]
    -> (0, [(1, 0, 0, 3, 1, 0, 2)])
store.get('tp__parallelism_manifest')[20]                             -> 3
class Duck: pass
duck = Duck()
duck.axes = [tp(1, 2, 0)]
write('duck', grid[2:], duck), keys('duck_tp')                        -> (0, ['duck_tp_1'])
many = store.batch_put_tensor_with_parallelism
many(['m', 'n', 'o2'], [grid, grid, None], [par(tp(0, 2, 0)), None, None]), keys('m'), keys('n')
    -> ([0, 0, -600], ['m__parallelism_manifest', 'm_tp_0'], ['n'])
many(['q', 'r'], [grid, grid], [par(tp(0, 2, 0))]), many(['q'], [grid], (None,)), keys('q')
    -> ([-600, -600], [-600], [])
many(['q'], [grid], [None], config(), [None]), many([], [])           -> ([-600], [])
many(['q', 'r'], [grid, grid], [None, None], config(group_ids=['g'])) -> [-600, -600]
many(['q'], [grid], None, config(), [tp(1, 2, 1)]), keys('q')
    -> ([0], ['q__writer_1of2_sd1', 'q__writer_manifest'])
many(['v', 'w'], [grid, grid]), same(store.get_tensor('w'), grid)     -> ([0, 0], True)
store.batch_upsert_tensor_with_parallelism(['v', 'w'], [grid + 1, grid]), same(store.get_tensor('v'),
    grid + 1)
    -> ([0, 0], True)
store.close()                                                         -> 0
"""

PARALLEL_FROM = """
write = store.put_tensor_with_parallelism_from
def keys(prefix):
    found = fetch(master.metrics, '/get_all_keys')[1].split()
    return sorted(key for key in found if key.startswith(prefix))
memory = Memory(8192)
p = memory.address
store.put_tensor('whole', grid), store.get_into('whole', p, 400)      -> (0, 400)
write('plain', p, 400), store.get('plain') == store.get('whole')      -> (0, True)
store.put_tensor_with_tp('ref', grid, 0, 3, 1)                        -> 0
write('a', p, 400, par(tp(1, 3, 1))), keys('a')                       -> (0, ['a_tp_0', 'a_tp_1', 'a_tp_2'])
[store.get(f'a_tp_{i}') == store.get(f'ref_tp_{i}') for i in range(3)] -> [True, True, True]
write('one', p, 400, par(tp(0, 1, 0))), keys('one')                   -> (0, ['one_tp_0'])
write('b', p, 400, par(axis('dp', 1, 2), tp(0, 2, 0))), keys('b')
    -> (0, ['b__dp_1of2__tp_0of2_sd0', 'b__dp_1of2__tp_1of2_sd0'])
header('b__dp_1of2__tp_1of2_sd0') -> (1, [4, 6], [2, 6], [(0, 0, 1, 2, -1, 0, 0), (1, 1, 1, 2, 0, 0, 2)])
write('c', p, 400, par(axis('dp', 1, 2))), header('c__dp_1of2')
    -> (0, (1, [4, 6], [4, 6], [(0, 0, 1, 2, -1, 0, 0)]))
write('d', p, 400, None, config(), tp(1, 2, 1)), keys('d')
    -> (0, ['d__writer_1of2_sd1', 'd__writer_manifest'])
header('d__writer_1of2_sd1')
    -> (1, [4, 6], [4, 3], [(1, 0, 1, 2, 1, 0, 3)])
same(store.get_tensor('d__writer_1of2_sd1'), grid[:, 3:])             -> True
write('x', p, 401, par(tp(0, 2, 0))), write('x', 0, 400, par(tp(0, 2, 0))), write('x', p, 303)
    -> (-600, -600, -600)
write('x', p, 400, par(tp(0, 5, 0))), write('x', p, 400, par(tp(0, 2, 2))), write('x', p, 400, par())
    -> (-600, -600, -600)
write('x', p, 400, par(tp(0, 2, 0)), config(prefer_alloc_in_same_node=True)) -> -600
write('x', p, 400, par(tp(0, 2, 0)), config(), tp(0, 2, 0)), keys('x') -> (-600, [])
store.get_into('ref_tp_1', p, 8192)                                   -> 336
write('x', p, 336, par(tp(0, 2, 0)))                                  -> -600 | fault
write('x', p, 336, None, config(), tp(0, 2, 0))                       -> -600 | fault
write('e', p, 336, par(axis('dp', 0, 1))), header('e__dp_0of1')
    -> (0, (1, [4, 6], [4, 2], [(0, 0, 0, 1, -1, 0, 0)]))
store.get_into('whole', p, 400)                                       -> 400
many = store.batch_put_tensor_with_parallelism_from
many(['f', 'g', 'h'], [p, p, 0], [400] * 3, [par(tp(0, 2, 0)), None, None]), keys('f')
    -> ([0, 0, -600], ['f_tp_0', 'f_tp_1'])
many(['i', 'j'], [p, p], [400, 401]), keys('i')                       -> ([-600, -600], [])
many(['i', 'j'], [p], [400, 400], [None, None]), many([], [], [])     -> ([-600, -600], [])
many(['i', 'j'], [p, p], [400], [None, None])                         -> [-600, -600] | fault
many(['i'], [p], [400], None, config(), [tp(0, 2, 0)]), keys('i')
    -> ([0], ['i__writer_0of2_sd0', 'i__writer_manifest'])
store.upsert_tensor_with_parallelism_from('plain', p, 400),
    store.batch_upsert_tensor_with_parallelism_from(['f'], [p], [400], [par(tp(0, 4, 0))])
    -> (0, [0])
keys('f'), header('f_tp_0')[2]
    -> (['f_tp_0', 'f_tp_1', 'f_tp_2', 'f_tp_3'], [1, 6])
store.close()                                                         -> 0
"""

PARALLEL_READS = """
read = lambda key, *args: store.get_tensor_with_parallelism(key, target(*args))
[store.put_tensor_with_parallelism('m', grid[2 * r:2 * r + 2], par(tp(r, 2, 0))) for r in range(2)] -> [0, 0]
store.put_tensor_with_tp('t', grid, 0, 3, 1), store.put_tensor('p', grid) -> (0, 0)
same(store.get_tensor_with_parallelism('p'), grid), same(read('p', 'as_stored'), grid) -> (True, True)
read('p', 'as_stored', tp(0, 2, 0)), read('m', 'as_stored'), read('p', 'shard'), read('m', 'shard',
    axis('xx'))
    -> (None, None, None, None)
same(read('p', 'full'), grid), read('m', 'full'), read('missing', 'full') -> (True, None, None)
[same(read('m', 'shard', tp(r, 2, 0)), grid[2 * r:2 * r + 2]) for r in range(2)] -> [True, True]
[same(read('m', 'shard', tp(r, 4, 0)), grid[r:r + 1]) for r in range(4)] -> [True] * 4
same(read('m', 'shard', tp(0, 1, 0)), grid), same(read('m', 'full', tp(0, 1, 0)), grid), same(read('m',
    'full', tp(3, 4, 0)), grid)
    -> (True, True, True)
[same(read('t', 'shard', tp(r, 2, 1)), grid[:, 3 * r:3 * r + 3]) for r in range(2)] -> [True, True]
[same(read('t', 'shard', tp(r, 6, 1)), grid[:, r:r + 1]) for r in range(6)] -> [True] * 6
same(read('t', 'full', tp(0, 2, 1)), grid), read('t', 'full', tp(0, 1, 1)), read('t', 'shard', tp(0, 1, 1))
    -> (True, None, None)
same(read('t', 'shard', tp(0, 4, 1)), grid[:, :2]), same(read('t', 'shard', tp(0, 2, 0)), grid[:, :2])
    -> (True, True)
read('t', 'full', tp(0, 4, 1)), read('t', 'full', tp(0, 2, 0)), read('p', 'full', axis('dp', 0, 1))
    -> (None, None, None)
same(read('p', 'shard', tp(0, 1, 0)), grid)                           -> True
both = [axis('dp', 1, 2), axis('tp', 0, 2, 1)]
[store.put_tensor_with_parallelism('b', grid, par(both[0], tp(r, 2, 1))) for r in range(2)] -> [0, 0]
same(read('b', 'shard', tp(1, 2, 1), both[0]), grid[:, 3:]), same(read('b', 'shard', both[0], tp(1, 3,
    1)), grid[:, 2:4])
    -> (True, True)
same(read('b', 'full', *both), grid), read('b', 'shard', tp(0, 2, 1)), read('b', 'shard', axis('dp', 0,
    2), both[1])
    -> (True, None, None)
read('m', 'shard', axis('dp', 0, 1), tp(0, 2, 0))                     -> None
store.remove('b__parallelism_manifest', True)                         -> 0
same(read('b', 'full', *both), grid), read('b', 'full', both[0], tp(0, 3, 1)) -> (True, None)
store.put_tensor_with_parallelism('e', grid, par(axis('ep', 0, 2, None, 7))) -> 0
same(read('e', 'shard', axis('ep', 0, 2, None, 7)), grid), read('e', 'shard', axis('ep', 0, 2, None, 8))
    -> (True, None)
store.put_tensor_with_parallelism('y', grid, par(axis('dp', 0, 2, None, None, 3))), read('y', 'shard',
    axis('dp', 0, 2, None, None, 3))
    -> (0, None)
[store.put_tensor_with_parallelism('w', grid, None, config(), tp(r, 3, 1)) for r in range(2)] -> [0, 0]
read('w', 'full'), store.put_tensor('w', grid + 1), same(read('w', 'full'), grid + 1) -> (None, 0, True)
store.put_tensor_with_parallelism('w', grid, None, config(), tp(2, 3, 1)), same(read('w', 'full'), grid)
    -> (0, True)
same(read('w', 'shard', tp(1, 3, 1)), grid[:, 2:4]), read('w', 'full', tp(0, 3, 1)) -> (True, None)
store.remove('m_tp_1', True), read('m', 'full', tp(0, 2, 0)), read('m', 'shard', tp(0, 4, 0)) is None
    -> (0, None, False)
store.upsert_tensor_with_parallelism('m', torch.ones(2, 6, dtype=torch.int32), par(tp(1, 2, 0))) -> 0
store.upsert('m__parallelism_manifest', store.get('m__parallelism_manifest')) -> 0
read('m', 'full', tp(0, 2, 0))                                        -> None | fault
[it is None for it in store.batch_get_tensor_with_parallelism(['p', 'm', 't'], [None, target('full'),
    target('full', tp(0, 2, 1))])]
    -> [False, True, False]
store.batch_get_tensor_with_parallelism(['p'], (None,)), store.batch_get_tensor_with_parallelism(['p',
    'p'], [None])
    -> ([None], [None, None])
store.batch_get_tensor_with_parallelism([]), same(store.batch_get_tensor_with_parallelism(['p'])[0], grid)
    -> ([], True)
[store.put_tensor_with_parallelism('z', torch.empty(0, 6), par(tp(r, 2, 0))) for r in range(2)] -> [0, 0]
shown(read('z', 'full', tp(0, 2, 0)))                                 -> ('float32', [0, 6], [])
class Duck: pass
duck = Duck()
duck.mode, duck.parallelism = 'SHARD', par(tp(1, 3, 1))
same(store.get_tensor_with_parallelism('t', duck), grid[:, 2:4]), store.get_tensor_with_parallelism('t', 3)
    -> (True, None)
duck.mode = 'other'
store.get_tensor_with_parallelism('t', duck)                          -> None
store.close()                                                         -> 0
"""

PARALLEL_INTO = """
[store.put_tensor_with_parallelism('m', grid[:, 3 * r:3 * r + 3], par(tp(r, 2, 1))) for r in range(2)]
    -> [0, 0]
store.put_tensor('p', grid)                                           -> 0
memory = Memory(8192, b'-')
p = memory.address
def into(key, *args, ptr=p, size=4096):
    wanted = target(*args) if args else None
    return store.get_tensor_with_parallelism_into(key, ptr, size, wanted)
into('p') is None                                                     -> True
store.register_buffer(p, 4096)                                        -> 0
got = into('p')
same(got, grid), got.data_ptr() - p                                   -> (True, 304)
got = into('m', 'full', tp(0, 2, 1))
same(got, grid), got.data_ptr() - p, memory[:400] == store.get('p')   -> (True, 304, True)
got = into('m', 'shard', tp(1, 3, 1))
same(got, grid[:, 2:4]), struct.unpack_from('<I', memory.map, 16)[0], struct.unpack_from('<iiiiiiq',
    memory.map, 176)
    -> (True, 1, (1, 0, 1, 3, 1, 0, 2))
same(into('m', 'shard', tp(1, 2, 1)), grid[:, 3:]), memory[:352] == store.get('m_tp_1') -> (True, True)
memory[:400] = b'-' * 400
into('m', 'full', tp(0, 2, 1), size=399), into('p', size=399), memory[:400] == b'-' * 400
    -> (None, None, True)
into('p', ptr=p + 4000), into('p', size=8192), into('p', ptr=0), into('missing'), into('m', 'full',
    tp(0, 4, 1))
    -> (None, None, None, None, None)
store.put_tensor_with_tp('t', grid, 0, 2, 0), into('t', 'shard', tp(0, 3, 0)) -> (0, None)
same(into('t', 'full', tp(0, 2, 0), ptr=p + 2048, size=2048), grid)   -> True
def many(*args):
    found = store.batch_get_tensor_with_parallelism_into(*args)
    return [None if it is None else list(it.shape) for it in found]
many(['p', 'm', 'x'], [p, p + 1024, p], [1024] * 3, [None, target('shard', tp(0, 2, 1)), None])
    -> [[4, 6], [4, 3], None]
many(['p', 'p'], [p, 0], [1024] * 2), many(['p', 'p'], [p], [1024] * 2), many([], [], [])
    -> ([[4, 6], None], [None, None], [])
store.put_tensor_with_parallelism('w', grid, None, config(), tp(0, 1, 0)), same(into('w', 'full'), grid)
    -> (0, True)
store.close()                                                         -> 0
"""

HELPERS = """
import mooncake.store as module
import os
module._tensor_metadata_size()                                        -> 304
made = module._serialize_tensor(grid)
len(made[0]), made[1] == grid.data_ptr(), made[2], made[3] is grid    -> (304, True, 96, True)
turned = module._serialize_tensor(grid.T)
turned[3] is grid.T, turned[3].is_contiguous(), turned[1] == turned[3].data_ptr() -> (False, True, True)
module._serialize_tensor(torch.empty(0))[1:3]                         -> (0, 0)
module._serialize_tensor(3)                                           -> raises ValueError unsupported tensor
store.put_tensor('t', grid), store.get('t')[:304] == made[0]          -> (0, True)
same(module._deserialize_tensor(store.get('t')), grid)                -> True
module._deserialize_tensor(bytearray(store.get('t')))                 -> raises TypeError
module._deserialize_tensor(store.get('t') + b'x')                     -> raises ValueError invalid serialized
store.save_tensor_to_safetensor('t'), os.path.exists('t')             -> (0, True)
store.save_tensor_to_safetensor('t', 'file'), store.save_tensor_to_safetensor('missing', 'none') -> (0, -1100)
store.save_tensor_to_safetensor('t', 'no/such/folder/file')           -> -600
store.save_tensor_to_safetensor('t', 3)                               -> raises RuntimeError cast
same(store.load_tensor_from_safetensor('t', 'file'), grid)            -> True
same(store.load_tensor_from_safetensor('new', 'file'), grid), same(store.get_tensor('new'), grid)
    -> (True, True)
same(store.load_tensor_from_safetensor(file_name='file'), grid), same(store.get_tensor('file'), grid)
    -> (True, True)
store.load_tensor_from_safetensor('t', 'missing'), store.load_tensor_from_safetensor('t', __file__)
    -> (None, None)
store.load_tensor_from_safetensor('file')                             -> raises TypeError
store.load_tensor_from_safetensor('t', __import__('pathlib').Path('file')) -> raises TypeError
store.load_tensor_from_safetensor(3, 'file')                          -> raises RuntimeError cast
store.close()                                                         -> 0
"""

IDLE = """
{prepare}
memory = Memory(512)
p = memory.address
full = target('full', tp(0, 2, 0))
store.put_tensor('k', grid), store.upsert_tensor('k', grid), store.pub_tensor('k', grid) -> (-600, -600, -600)
store.batch_put_tensor(['k', 'l'], [grid, grid]), store.batch_upsert_pub_tensor(['k'], [grid])
    -> ([-600, -600], [-600])
store.put_tensor_from('k', p, 400), store.batch_put_tensor_from(['k'], [p], [400]) -> (-600, [-600])
store.get_tensor('k'), store.batch_get_tensor(['k', 'l'])             -> (None, [None, None])
store.get_tensor_into('k', p, 512), store.batch_get_tensor_into(['k'], [p], [512]) -> (None, [-600])
store.get_tensor_into_cuda('k', grid), store.batch_get_tensor_into_cuda(['k'], [grid]) -> (-600, [-600])
store.put_tensor_with_tp('k', grid, 0, 2), store.batch_put_tensor_with_tp(['k'], [grid], 0, 2)
    -> (-600, [-600])
store.get_tensor_with_tp('k', 0, 2), store.batch_get_tensor_with_tp_into(['k'], [p], [512], 0, 2)
    -> (None, [None])
store.put_tensor_with_tp_from('k', p, 400, 0, 2), store.get_tensor_with_tp_into('k', p, 512, 0, 2)
    -> (-600, None)
store.put_tensor_with_parallelism('k', grid), store.batch_put_tensor_with_parallelism(['k'], [grid])
    -> (-600, [-600])
store.get_tensor_with_parallelism('k'), store.batch_get_tensor_with_parallelism(['k']) -> (None, [None])
store.put_tensor_with_parallelism('k', grid, par(tp(0, 2, 0)))        -> -600 | fault
store.put_tensor_with_parallelism_from('k', p, 400, par(tp(0, 2, 0))) -> -600 | fault
store.batch_put_tensor_with_parallelism_from(['k'], [p], [400], [par(tp(0, 2, 0))]) -> [-600] | fault
store.get_tensor_with_parallelism('k', full), store.get_tensor_with_parallelism_into('k', p, 512, full)
    -> (None, None) | fault
store.save_tensor_to_safetensor('k', 'f'), store.load_tensor_from_safetensor('k', 'f') -> (-600, None)
"""

LEASE = """
store.put_tensor('t', grid), store.remove('t')                        -> (0, 0)
store.put_tensor('t', grid), same(store.get_tensor('t'), grid)        -> (0, True)
store.remove('t') -> -706 | relaxed 0
store.upsert_tensor('t', grid + 1), same(store.get_tensor('t'), grid + 1) -> (0, True)
store.remove('t', force=True)                                         -> 0
store.close()                                                         -> 0
"""
LEASE_MASTER = "master = Master('--default_kv_lease_ttl=60000', {mode})\nconnect(master.address)  -> 0"

NEW = "store = MooncakeDistributedStore()"
SECTIONS = {
    "plain": BEGIN + SET_UP + PLAIN,
    "batch": BEGIN + SET_UP + BATCH,
    "buffers": BEGIN + SET_UP + BUFFERS,
    "tp": BEGIN + SET_UP + TP,
    "classes": BEGIN + CLASSES,
    "parallel writes": BEGIN + SET_UP + PARALLEL_WRITES,
    "parallel from": BEGIN + SET_UP + PARALLEL_FROM,
    "parallel reads": BEGIN + SET_UP + PARALLEL_READS,
    "parallel into": BEGIN + SET_UP + PARALLEL_INTO,
    "helpers": BEGIN + SET_UP + HELPERS,
    "tensors, not set up": BEGIN + IDLE.format(prepare=NEW),
    "tensors, closed": BEGIN + IDLE.format(prepare=f"{SET_UP}store.close()  -> 0"),
    "tensors, leased": BEGIN + LEASE_MASTER.format(mode="") + LEASE,
    "strict tensors, leased": BEGIN + LEASE_MASTER.format(mode=STRICT) + LEASE,
}
SUITE = Suite(SECTIONS)
test_a_call_answers_as_the_original_does = SUITE.test()
