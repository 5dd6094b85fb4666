"""The answers of buffers, descriptors, tasks, segments and Engram, compared with the official wheel's.

See `conformance.py` for how a section is written.
"""

from conformance import STRICT, Suite

HANDLES = """
master = Master()
connect(master.address, segment=64 * MIB, buffer=16 * MIB)            -> 0
import mooncake.store
mooncake.store.BufferHandle()                                         -> raises TypeError
store.put('five', b'5' * 5 * MIB)                                     -> 0
handle = store.get_buffer('five')
len(handle), handle.size(), handle.ptr() > 0                          -> (5 * MIB, 5 * MIB, True)
handle[0]                                                             -> raises TypeError
view = memoryview(handle)
view.format, view.itemsize, view.ndim, view.readonly, view.c_contiguous -> ('b', 1, 1, False, True)
view[0] = 65
bytes(handle)[:2], store.get('five')[:2]                              -> (b'A5', b'55')
two, three = store.get_buffer('five'), store.get_buffer('five')
store.get_buffer('five'), store.get('five')[:1]                       -> (None, b'') | ours (None, b'5')
[it and it.size() for it in store.batch_get_buffer(['five'])]         -> [None]
del two, three
[it and it.size() for it in store.batch_get_buffer(['five'] * 3)]     -> [5 * MIB, 5 * MIB, None]
store.batch_get_buffer([])                                            -> []
store.remove('five', True), bytes(handle)[:2]                         -> (0, b'A5')
store.close(), bytes(handle)[:2]                                      -> (0, b'A5')
"""

POOL = """
from mooncake.store import *
import mooncake
master = Master()
store = MooncakeDistributedStore()
BufferPool(store)            -> raises RuntimeError MooncakeDistributedStore is not initialized
BufferPool(None)             -> raises RuntimeError MooncakeDistributedStore is not initialized
BufferPool(3)                -> raises RuntimeError BufferPool store parameter must be
connect(master.address, buffer=0)                                     -> 0
BufferPool(store)            -> raises RuntimeError BufferPool requires a store configured with a local buffer
store.close(), connect(master.address, buffer=16 * MIB)               -> (0, 0)
BufferPool(store, min_size_class=0)  -> raises RuntimeError min_size_class and alignment must be positive
BufferPool(store, alignment=0)       -> raises RuntimeError min_size_class and alignment must be positive
BufferPool(store, alignment=24)      -> raises RuntimeError alignment must be a power of two
BufferPool(store, alignment=4)       -> raises RuntimeError alignment must be a power of two
BufferPool(store, max_bytes=-1)                                       -> raises TypeError
RegisteredBufferPool is BufferPool, mooncake.BufferPool is BufferPool -> (True, True)
RegisteredBufferLease is BufferLease, RegisteredBufferLeaseView is BufferLeaseView -> (True, True)
pool = BufferPool(store)
lease = pool.acquire(1000)
type(lease).__name__, lease.size, lease.ptr % 64, lease.ptr > 0       -> ('BufferLease', 1000, 0, True)
setattr(lease, 'size', 3)                                             -> raises AttributeError
len(lease)                                                            -> raises TypeError
memoryview(lease)                                                     -> raises TypeError
view = lease.buffer
view.format, view.ndim, view.readonly, len(view)                      -> ('B', 1, False, 1000)
type(view.obj).__name__, type(view.obj.buffer).__name__               -> ('BufferLeaseView', 'memoryview')
view[:5] = b'bytes'
store.put_from('lease', lease.ptr, 5), store.get('lease')             -> (0, b'bytes')
store.get_into('lease', lease.ptr + 10, 100), bytes(view[10:15])      -> (5, b'bytes')
store.get_into_ranges([lease.ptr], [['lease']], [[[20]]], [[[1]]], [[[3]]]), bytes(view[20:23])
    -> ([[[3]]], b'yte')
lease.release()              -> raises RuntimeError cannot release buffer while exported views exist
bytes(lease.buffer[:5])                                               -> b'bytes'
pool.close()                 -> raises RuntimeError cannot close buffer pool with active leases
view.release()
lease.release(), lease.release(), lease.size                          -> (None, None, 1000)
lease.ptr                    -> raises RuntimeError buffer lease is closed
lease.buffer                 -> raises BufferError Error getting buffer
with pool.buffer(64) as inside:
    outside = (inside.size, type(inside.buffer).__name__)
outside, inside.size                                                  -> ((64, 'memoryview'), 64)
inside.ptr                   -> raises RuntimeError buffer lease is closed
pool.acquire(0).size                                                  -> 0
pool.acquire(32 * MIB + 1)   -> raises RuntimeError requested buffer size exceeds pool capacity
pool.acquire(-1)                                                      -> raises TypeError
first, second = pool.acquire(12 * MIB), pool.acquire(12 * MIB)
second.ptr % (8 * MIB), (second.buffer[0], second.buffer[-1]) != None -> (0, True)
store.put_from('over', second.ptr, 12 * MIB)                          -> 0
store.get_into_ranges([second.ptr], [['lease']], [[[0]]], [[[0]]], [[[5]]]) -> [[[5]]]
pool.acquire(12 * MIB, block=False)      -> raises RuntimeError buffer pool is exhausted
pool.acquire(12 * MIB, timeout=0)        -> raises RuntimeError timed out waiting for buffer
pool.acquire(12 * MIB, True, 0.05)       -> raises RuntimeError timed out waiting for buffer
pool.acquire(1, timeout=-1)              -> raises RuntimeError timeout must be non-negative
got = []
waiter = threading.Thread(target=lambda: got.append(pool.acquire(12 * MIB, timeout=30).size))
waiter.start(), first.release(), waiter.join(30), got                 -> (None, None, None, [12 * MIB])
second.release()
one = BufferPool(store, max_regions=1, block_on_exhaustion=False)
kept = one.acquire(10)
one.acquire(10)              -> raises RuntimeError buffer pool is exhausted
del kept
one.acquire(10).size                                                  -> 10
pool.prewarm(4096, 3)                                                 -> None
pool.close(), pool.close(), pool.prewarm(1, 1)                        -> (None, None, None)
pool.acquire(1)              -> raises RuntimeError buffer pool is closed
last = one.acquire(4)
last.buffer[:4] = b'last'
store.close(), bytes(last.buffer)                                     -> (0, b'last')
last.release()
one.acquire(4)               -> raises RuntimeError MooncakeDistributedStore is not initialized | fault
"""

HOST = """
import mmap, os
from mooncake.store import *
allocator, other = MooncakeHostMemAllocator(), MooncakeHostMemAllocator()
address = allocator.alloc(10000)
address % mmap.PAGESIZE, ctypes.string_at(address, 10000) == bytes(10000) -> (0, True)
ctypes.memset(address, 65, 10000) == address                          -> True
'memfd:mooncake_shm' in open('/proc/self/maps').read()                -> True
other.free(address), allocator.free(address), allocator.free(0), allocator.free(12345) -> (0, -1, -1, -1)
allocator.alloc(0)           -> raises RuntimeError Failed to map shared memory: Invalid argument
allocator.alloc(1 << 60)     -> raises RuntimeError Failed to map shared memory: Cannot allocate memory
allocator.alloc(-1)                                                   -> raises TypeError
allocator.alloc('1')                                                  -> raises TypeError
bind_to_numa_node(0), bind_to_numa_node(-1), bind_to_numa_node(5000)  -> (None, None, None)
bind_to_numa_node('a')                                                -> raises TypeError
get_alloc_func_addr() > 0, get_free_func_addr() > 0                   -> (True, True)
register = MooncakeDistributedNoFRegister()
register.real_register('n', 1, '127.0.0.1', 4420, 0, 1, '127.0.0.1:1') -> -1 | ours -1012
register.real_unregister_by_endpoint('n', 1, '127.0.0.1', 4420, '127.0.0.1:1') -> -1 | ours -1012
"""

ENUMS = """
import pickle
from mooncake.store import *
import mooncake.store
[int(it) for it in (ReplicaStatus.UNDEFINED, ReplicaStatus.COMPLETE, ReplicaStatus.FAILED)] -> [0, 3, 5]
[int(it) for it in (TaskStatus.PENDING, TaskStatus.PROCESSING, TaskStatus.FAILED, TaskStatus.SUCCESS)]
    -> [0, 1, 2, 3]
int(TaskType.REPLICA_COPY), int(TaskType.REPLICA_MOVE)                -> (0, 1)
repr(TaskStatus.SUCCESS), str(TaskStatus.SUCCESS), TaskStatus.SUCCESS.name, TaskStatus.SUCCESS.value
    -> ('<TaskStatus.SUCCESS: 3>', 'TaskStatus.SUCCESS', 'SUCCESS', 3)
TaskStatus.SUCCESS == 3, TaskStatus(3) == TaskStatus.SUCCESS          -> (False, True)
hash(TaskStatus.SUCCESS), hash(ReplicaStatus.COMPLETE)                -> (3, 3)
pickle.loads(pickle.dumps(SoftPinAction.ENABLE)) == SoftPinAction.ENABLE -> True
repr(mooncake.store.PROCESSING), repr(mooncake.store.FAILED)
    -> ('<TaskStatus.PROCESSING: 1>', '<TaskStatus.FAILED: 2>')
repr(TaskStatus(9))          -> '<TaskStatus.???: 9>' | ours raises ValueError
str(Descriptor())            -> '<Descriptor size=0 buffer_address=0 transport_endpoint=>'
changed = Descriptor()
changed.size, changed.buffer_address, changed.transport_endpoint = 4, 5, 'a:1'
repr(changed)                -> '<Descriptor size=4 buffer_address=5 transport_endpoint=a:1>'
ReplicaDescriptor()                                                   -> raises TypeError
MemoryDescriptor()                                                    -> raises TypeError
DiskDescriptor()                                                      -> raises TypeError
str(QueryTaskResponse()).startswith('QueryTaskResponse(id=0-0, type=0, status=0, created_at=0,') -> True
str(QueryTaskResponse()).endswith(' last_updated_at=0, assigned_client=0-0, message="")') -> True
"""

REPLICAS = """
from mooncake.store import *
master = Master(environment=dict(TIFFIN_MASTER_LEASE_MODE='strict'))
a = Other(master.address, 64 * MIB, metadata=master.metadata_url)
connect(master.address, metadata=master.metadata_url)                 -> 0
own, there = store.get_hostname(), a('store.get_hostname()')
store.get_replica_desc('no'), store.get_replica_desc(''), store.batch_get_replica_desc([]) -> ([], [], {{}})
store.put('one', b'12345', config(preferred_segment=own))             -> 0
found = store.get_replica_desc('one')
[(it.status.name, it.is_memory_replica(), it.is_disk_replica(), it.is_local_disk_replica()) for it in found]
    -> [('COMPLETE', True, False, False)]
place = found[0].get_memory_descriptor().buffer_descriptor
place.size, place.transport_endpoint == own                           -> (5, True)
found[0].get_disk_descriptor()
    -> raises RuntimeError Expected DiskDescriptor
setattr(found[0], 'status', None)                                     -> raises AttributeError
list(store.batch_get_replica_desc(['one', 'no', 'one']))              -> ['one']
store.put('both', b'b', config(replica_num=2)), len(store.get_replica_desc('both')) -> (0, 2)
store.batch_replica_clear(['no', ''])                                 -> []
store.put('c1', b'v'), store.put('c2', b'v', config(with_hard_pin=True)) -> (0, 0)
store.batch_replica_clear(['c1', 'no', 'c2', 'c1'])                   -> ['c1', 'c2']
store.batch_is_exist(['c1', 'c2'])                                    -> [0, 0]
store.put('leased', b'v'), store.get('leased'), store.batch_replica_clear(['leased']) -> (0, b'v', [])
store.put('seen', b'v'), len(store.get_replica_desc('seen')), store.remove('seen')
    -> (0, 1, -706) | ours (0, 1, 0)
a("store.put('theirs', b'v')"), store.batch_replica_clear(['theirs']) -> (0, [])
store.put('two', b'v', config(replica_num=2)), store.batch_replica_clear(['two'], 'nosuch:1') -> (0, [])
store.batch_replica_clear(['two'], own)                               -> ['two']
place = lambda it: it.get_memory_descriptor().buffer_descriptor.transport_endpoint
[place(it) == own for it in store.get_replica_desc('two')]           -> [False]
store.get('two')                                                      -> b'v'
store.put('last', b'v', config(preferred_segment=own))                -> 0
store.batch_replica_clear(['last'], own), store.is_exist('last')      -> (['last'], 0)
"""

TASKS = """
from mooncake.store import *
master = Master()
a = Other(master.address, 64 * MIB)
connect(master.address)                                               -> 0
own, there = store.get_hostname(), a('store.get_hostname()')
where = lambda key: len(store.get_replica_desc(key))
begun = (TaskStatus.PENDING, TaskStatus.PROCESSING)
ended = lambda id: until(lambda: store.query_task(id)[0].status not in begun) and store.query_task(id)[0]
store.create_copy_task('no', [there]), store.create_copy_task('', [there]) -> (((0, 0), -704), ((0, 0), -704))
store.put('k', b'value', config(preferred_segment=own))               -> 0
store.create_copy_task('k', []), store.create_copy_task('k', ['nosuch:1']) -> (((0, 0), -600), ((0, 0), -600))
store.create_move_task('k', own, own)[1], store.create_move_task('k', 'nosuch:1', there)[1] -> (-600, -600)
store.create_move_task('k', there, own)[1], store.create_move_task('no', own, there)[1] -> (-600, -704)
store.query_task((1, 2))                                              -> (None, -1400)
store.query_task('ab')                                                -> raises TypeError
task, code = store.create_copy_task('k', [there])
code, len(task), task != (0, 0)                                       -> (0, 2, True)
done = ended(task)
done.status.name, done.type.name, done.message, done.id == task
    -> ('SUCCESS', 'REPLICA_COPY', 'Task completed successfully', True)
done.created_at_ms_epoch <= done.last_updated_at_ms_epoch, len(done.assigned_client) -> (True, 2)
where('k'), store.get('k')                                            -> (2, b'value')
store.query_task(list(task))[1]                                       -> 0
ended(store.create_copy_task('k', [own])[0]).status.name, where('k')  -> ('SUCCESS', 2)
ended(store.create_move_task('k', own, there)[0]).status.name, where('k') -> ('SUCCESS', 1)
store.get('k')                                                        -> b'value'
b = Other(master.address, 0)
made = b('store.allocate_and_mount_segment(16 << 20)')['segment_ids']
leaving = b('store.get_hostname()')
b(f'store.unmount_and_free_segment({made!r}, 60)')                    -> 0
store.create_copy_task("k", [leaving]), store.create_move_task("k", there, leaving)[1]
    -> (((0, 0), -1010), -1010)
store.put('m', b'moved', config(preferred_segment=own))               -> 0
ended(store.create_move_task('m', own, there)[0]).status.name         -> 'SUCCESS'
[len(store.get_replica_desc('m')), store.get('m'), a("store.get('m')")] -> [1, b'moved', b'moved']
"""

SEGMENTS = """
import os, tempfile
master = Master()
connect(master.address, segment=0)                                    -> 0
store.put('k', b'v')                                                  -> -200
store.allocate_and_mount_segment(0)   -> {'ret': -1, 'segment_ids': [], 'allocated_size': 0}
made = store.allocate_and_mount_segment(1)
made['ret'], made['allocated_size'], len(made['segment_ids'])         -> (0, 16 * MIB, 1)
[part.isdigit() for part in made['segment_ids'][0].split('-')]        -> [True, True]
more = store.allocate_and_mount_segment(17 * MIB, 'tcp', 'cpu:0')
more['ret'], more['allocated_size']                                   -> (0, 32 * MIB)
master.segments() == [store.get_hostname()] * 2                       -> True
store.put('k', b'v'), store.get('k')                                  -> (0, b'v')
store.unmount_segment(made['segment_ids'])                            -> -1
store.unmount_and_free_segment(['bad']), store.unmount_and_free_segment(['1-2']) -> (-1, -1)
store.unmount_and_free_segment([]), store.unmount_segment([])         -> (0, 0)
store.unmount_and_free_segment(made['segment_ids'] + more['segment_ids']) -> 0
store.is_exist('k'), store.put('k', b'v'), master.segments()          -> (0, -200, [])
store.unmount_and_free_segment(made['segment_ids'])                   -> -1
last = store.allocate_and_mount_segment(16 * MIB)
store.put('k', b'v'), store.unmount_and_free_segment(last['segment_ids'], 3), store.get('k') -> (0, 0, b'v')
store.put('late', b'v')                                               -> -200
store.unmount_and_free_segment(last['segment_ids'], 1)                -> -600
until(lambda: store.is_exist('k') == 0 and master.segments() == [], 40) -> True
folder = tempfile.mkdtemp()
file = os.path.join(folder, 'file')
_written = open(file, 'wb').write(bytes(32 * MIB))
store.mount_segment(os.path.join(folder, 'no'), MIB) -> {'ret': -1, 'segment_ids': []}
store.mount_segment(file, 64 * MIB)                  -> {'ret': -1, 'segment_ids': []}
store.mount_segment(file, MIB, 5)                    -> {'ret': -1, 'segment_ids': []}
store.mount_segment(file, 0)                         -> {'ret': 0, 'segment_ids': []}
store.mount_segment(file, 16 * MIB)['ret']                            -> 0 | ours -1012
store.unmount_local_disk_segment(), store.get_offload_rpc_read_count() -> (0, 0)
store.alloc_from_mem_pool(4096)                                       -> 0
store.close()                                                         -> 0
"""

METADATA = """
master = Master()
connect(master.address)                                               -> 0
memory = Memory(8192, b'abcdefgh')
p = memory.address
store.put_from_with_metadata('pm', p, p + 4096, 100, 10)              -> 0
store.get_size('pm'), store.get('pm') == memory[4096:4106] + memory[:100] -> (110, True)
store.put_from_with_metadata('pm', p, p, 5, 5), store.get_size('pm')  -> (0, 110)
store.put_from_with_metadata('zero', p, p, 0, 5), store.is_exist('zero') -> (0, 0)
store.put_from_with_metadata('data', p, 0, 5, 0), store.get('data')   -> (0, b'abcde')
store.put_from_with_metadata('', p, p, 5, 5)                          -> 600 | ours -600
store.put_from_with_metadata('r', p, p, 5, 5, config(replica_num=0))  -> 600 | ours -600
store.put_from_with_metadata('n', p, p, 5, 5, config(prefer_alloc_in_same_node=True)) -> -1 | ours -600
store.put_from_with_metadata(key='kw', buffer_ptr=p, metadata_buffer_ptr=p, size=1, metadata_size=1) -> 0
store.close()                                                         -> 0
"""

ENGRAM = """
import numpy as np
from mooncake.store import *
master = Master({mode})
connect(master.address)                                               -> 0
settings = EngramStoreConfig()
settings.table_vocab_sizes, settings.embedding_dim                    -> ([1024], 64)
settings.table_vocab_sizes, settings.embedding_dim = [4, 3], 2
def engram(**changes):
    made = EngramStoreConfig()
    made.table_vocab_sizes, made.embedding_dim = [4, 3], 2
    for name, value in changes.items(): setattr(made, name, value)
    return EngramStore(7, made, store)
engram(embedding_dim=0)      -> raises ValueError EngramStoreConfig.embedding_dim must be positive
engram(table_vocab_sizes=[]) -> raises ValueError EngramStoreConfig.table_vocab_sizes must not be empty
engram(table_vocab_sizes=[1, 0]) -> raises ValueError table_vocab_sizes must contain only positive values
EngramStore(1, settings, 3)  -> raises RuntimeError EngramStore store parameter must be
EngramStore('a', settings)                                            -> raises TypeError
tables = engram()
tables.get_store_keys(), tables.get_num_heads()                       -> (['engram:l7:h0', 'engram:l7:h1'], 2)
tables.get_embedding_dim(), tables.get_table_vocab_sizes()            -> (2, [4, 3])
first, second = np.arange(8, dtype='f4').reshape(4, 2), np.arange(6, dtype='f8').reshape(3, 2)
tables.lookup([[[0, 0]]])    -> raises RuntimeError EngramStore lookup failed
tables.populate([first])     -> raises RuntimeError embedding_buffers size must match num_heads
tables.populate([first, 1])  -> raises RuntimeError embedding_buffers must be NumPy arrays
tables.populate([first, first[0]])    -> raises RuntimeError each embedding buffer must be 2D [N_h, D]
tables.populate([first, first])       -> raises RuntimeError embedding buffer shape does not match
tables.populate((first, second))                                      -> raises TypeError
EngramStore(7, settings).populate([first, second])                    -> raises RuntimeError populate failed
tables.populate([first, second])                                      -> None
store.get_size('engram:l7:h0'), store.get_size('engram:l7:h1')        -> (32, 24)
tables.populate([first, second])                                      -> raises RuntimeError populate failed
found = tables.lookup(np.array([[[3, 0], [1, 2]]]))
found.dtype.str, found.shape, found.tolist()
    -> ('<f4', (1, 2, 2, 2), [[[[6.0, 7.0], [0.0, 1.0]], [[2.0, 3.0], [4.0, 5.0]]]])
(tables.lookup([[[3, 0], [1, 2]]]) == found).all().item()             -> True
tables.lookup([[[4, 0]]])    -> raises RuntimeError EngramStore lookup failed
tables.lookup([[[-1, 0]]])   -> raises RuntimeError EngramStore lookup failed
tables.lookup([[[0]]])       -> raises RuntimeError EngramStore lookup failed
tables.lookup([[[0, 0]], [[0]]])      -> raises RuntimeError EngramStore lookup failed
tables.lookup([])            -> raises RuntimeError row_ids must not be empty
tables.lookup(None)                                                   -> raises TypeError
tables.lookup(np.zeros((1, 1), int))  -> raises RuntimeError row_ids array must have shape [B, L, H]
tables.lookup(np.zeros((1, 1, 1), int)) -> raises RuntimeError row_ids last dimension must match num_heads
tables.lookup(np.zeros((0, 1, 2), int)) -> raises RuntimeError EngramStore lookup failed
tables.remove_from_store()   -> raises RuntimeError remove_from_store failed, rc=-706 | relaxed 2
tables.remove_from_store(force=True), tables.remove_from_store()      -> (2, 0) | relaxed (0, 0)
EngramStore(7, settings).remove_from_store()  -> raises RuntimeError remove_from_store failed, rc=-600
store.close()                                                         -> 0
"""

IDLE_REST = """
store.put_from_with_metadata('k', p, p, 5, 5)                         -> -600
store.batch_replica_clear(['k'])                                      -> []
store.mount_segment('/nosuch', 5)                                     -> {'ret': -1, 'segment_ids': []}
store.allocate_and_mount_segment(5)   -> {'ret': -1, 'segment_ids': [], 'allocated_size': 0}
store.unmount_segment([]), store.unmount_and_free_segment(['1-2']), store.unmount_local_disk_segment()
    -> (-1, -1, -1)
store.get_offload_rpc_read_count()                                    -> 0
store._get_pyclient_capsule()                                         -> None
store.get_replica_desc('k')                                           -> [] | fault
store.batch_get_replica_desc(['k'])                                   -> {} | fault
store.create_copy_task('k', ['a:1'])                                  -> ((0, 0), -600) | fault
store.create_move_task('k', 'a:1', 'b:1')                             -> ((0, 0), -600) | fault
store.query_task((1, 2))                                              -> (None, -600) | fault
store.get_into_ranges([p], [['k']], [[[0]]], [[[0]]], [[[4]]])        -> [] | fault
store.alloc_from_mem_pool(4096)                                       -> 0 | fault
"""


def idle(prepare):
    """The answers of a store that is not set up."""
    begin = "from mooncake.store import MooncakeDistributedStore\n"
    return f"{begin}{prepare}\nmemory = Memory(64)\np = memory.address\n{IDLE_REST.strip()}\n"


DRAIN = """
import json
master = Master()
a, b = Other(master.address, 64 * MIB), Other(master.address, 64 * MIB)
connect(master.address, 0)                                            -> 0
here, there = a('store.get_hostname()'), b('store.get_hostname()')
jobs, busy = '/api/v1/drain_jobs', (409, -1010, 'UNAVAILABLE_IN_CURRENT_STATUS')
ask = lambda path, method='GET', body=None: fetch(master.metrics, path, method, body)
answer = lambda path, method='GET', body=None: json.loads(ask(path, method, body)[1])
create = lambda *segments, **more: ask(jobs, 'POST', json.dumps({'segments': list(segments)} | more))
code = lambda made: (made[0], json.loads(made[1])['error_code'], json.loads(made[1])['error_message'])
code(create()), code(create(here, here)) -> ((400, -600, 'INVALID_PARAMS'), (400, -600, 'INVALID_PARAMS'))
code(create(here, max_concurrency=0))                                 -> (400, -600, 'INVALID_PARAMS')
code(create(here, target_segments=[here]))                            -> (400, -600, 'INVALID_PARAMS')
code(create('no:1')), code(create(here, target_segments=['no:1']))
    -> ((404, -101, 'SEGMENT_NOT_FOUND'), (404, -101, 'SEGMENT_NOT_FOUND'))
[code(ask(jobs, 'POST', it))[:2] for it in ('', '{', '[]')]           -> [(400, -600)] * 3
code(ask(jobs + '/query')), code(ask(jobs + '/query?job_id=x'))
    -> ((400, -600, 'Missing or invalid job_id'), (400, -600, 'Missing or invalid job_id'))
code(ask(jobs + '/query?job_id=1-2'))                                 -> (404, -1402, 'JOB_NOT_FOUND')
code(ask(jobs + '/cancel?job_id=1-2', 'POST'))                        -> (404, -1402, 'JOB_NOT_FOUND')
[store.put(f'k{n}', bytes(1000), config(preferred_segment=here)) for n in range(6)] -> [0] * 6
status, made = create(here)
made = json.loads(made)
status, [made[it] for it in ('success', 'status', 'error_code', 'error_message')]
    -> (200, [True, 'CREATED', 0, ''])
query = f"{jobs}/query?job_id={made['job_id']}"
until(lambda: answer(query)['status_name'] == 'SUCCEEDED')            -> True
done = answer(query)
done['job_id'] == made['job_id'], done['segments'] == [here]          -> (True, True)
[done[it] for it in ('success', 'type', 'type_name', 'status', 'message', 'error_code', 'error_message')]
    -> [True, 0, 'DRAIN', 3, 'Drain job finished successfully', 0, '']
[done[f'{it}_units'] for it in ('succeeded', 'failed', 'blocked', 'active')] -> [6, 0, 0, 0]
done['migrated_bytes'], len(done)                                     -> (6000, 17)
done['created_at_ms_epoch'] <= done['last_updated_at_ms_epoch']       -> True
answer(f'/api/v1/segments/status?segment={here}')['status_name']      -> 'DRAINED'
master.segments() == [there], store.get('k5') == bytes(1000)          -> (True, True)
code(create(here)) == busy                                            -> True
code(create(there, target_segments=[here])) == busy                   -> True
code(ask(f"{jobs}/cancel?job_id={made['job_id']}", 'POST')) == busy   -> True
store.create_copy_task('k5', [here])                                  -> ((0, 0), -1010)
store.put('pinned', b'value', config(with_hard_pin=True))             -> 0
job = answer(jobs, 'POST', json.dumps({'segments': [there]}))['job_id']
store.put('new', b'value')                                            -> -200
until(lambda: answer(f'{jobs}/query?job_id={job}')['blocked_units'] > 0) -> True
answer(f'{jobs}/query?job_id={job}')['status_name']                   -> 'RUNNING'
answer(f'/api/v1/segments/status?segment={there}')['status_name']     -> 'DRAINING'
cancelled = answer(f'{jobs}/cancel?job_id={job}', 'POST')
cancelled['success'], cancelled['status']                             -> (True, 'CANCELED')
until(lambda: answer(f'/api/v1/segments/status?segment={there}')['status_name'] == 'OK') -> True
answer(f'{jobs}/query?job_id={job}')['message']                       -> 'Drain job canceled'
until(lambda: store.put('new', b'value') == 0)                        -> True
"""

SECTIONS = {
    "handles": HANDLES,
    "pool": POOL,
    "host memory": HOST,
    "enums": ENUMS,
    "replicas": REPLICAS.replace("{{}}", "{}"),
    "tasks": TASKS,
    "segments": SEGMENTS,
    "drain": DRAIN,
    "metadata": METADATA,
    "engram": ENGRAM.format(mode=""),
    "strict engram": ENGRAM.format(mode=STRICT),
    "not set up, the rest": idle("store = MooncakeDistributedStore()"),
    "closed, the rest": idle("master = Master()\nconnect(master.address)  -> 0\nstore.close()  -> 0"),
}
SUITE = Suite(SECTIONS)
test_a_call_answers_as_the_original_does = SUITE.test()
