//! The plan of a seed: sizes, rates and faults. Not every fault occurs in every world: some mutants show only
//! in quiet ones.

use tiffin_core::master::{RepairConfig, TierConfig};
use tiffin_node::SLOT_BYTES;
use tiffin_types::{EXTENT_ALIGN, EXTENTS_MAX, message::Demotion};

use tiffin_sim_runner::Rng;

use crate::faults::Fault;

/// The settings of one world.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// How many of them are near the master: no message of the master to them is lost.
    pub(crate) same_host_nodes: usize,
    pub(crate) clients: usize,
    /// Bytes of each node's memory.
    pub(crate) capacity: u64,
    pub(crate) slot_count: u32,
    pub(crate) heap_bytes: u64,
    /// Growth step of records and names, and number of free steps.
    pub(crate) chunk_bytes: u64,
    pub(crate) chunks_free: u64,
    /// Maximum number of extents of an object.
    pub(crate) extents_max: usize,
    pub(crate) silence_ms_max: u64,
    pub(crate) away_ms_max: u64,
    /// Duration of a long break of a link.
    pub(crate) bar_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) strict_leases: bool,
    pub(crate) lease_grace_ms: u64,
    pub(crate) evict_soft_pinned: bool,
    pub(crate) piece_objects_max: usize,
    /// Retires that one answer to a node that returns may contain.
    pub(crate) owed_page_max: usize,
    pub(crate) delay_usual: u64,
    pub(crate) delay_seldom: u64,
    /// Percentage of clients that map the nodes' memory.
    pub(crate) sharing_percent: u64,
    /// Number of keys in use.
    pub(crate) keys: u64,
    /// Percentage of puts that are pinned.
    pub(crate) pin_percent: u64,
    /// Percentage of puts that are samples.
    pub(crate) sample_percent: u64,
    /// Interval of `Keep` messages.
    pub(crate) beat_ms: u64,
    /// Percentage of broken connections whose frames in flight arrive late.
    pub(crate) late_percent: u64,
    /// Percentage of operations that are views.
    pub(crate) view_percent: u64,
    /// Maximum pause between two operations of a client.
    pub(crate) pause_max: u64,
    /// The weight of each fault.
    pub(crate) faults: Vec<u64>,
    /// Mean time between two faults.
    pub(crate) fault_gap: u64,
    /// Percentage of operations on streams.
    pub(crate) stream_percent: u64,
    /// Number of nodes with a disk.
    pub(crate) disks: usize,
    /// Capacity of each disk.
    pub(crate) disk_capacity: u64,
    /// Percentage of operations on the disk tier.
    pub(crate) tier_percent: u64,
    /// Percentage of operations that are small puts without waiting.
    pub(crate) no_wait_percent: u64,
    pub(crate) tier: TierConfig,
    /// Percentage of changes of lifetimes that declare a node lost that is not connected.
    pub(crate) forget_percent: u64,
    /// Percentage of crashes of the master that lose its state folder.
    pub(crate) state_loss_percent: u64,
    /// Percentage of these that restart with an epoch that was used before.
    pub(crate) regress_percent: u64,
    /// Number of nodes whose memory outlives their process, counted from the last.
    pub(crate) pools: usize,
    /// Percentage of crashes of these nodes that lose the memory all the same.
    pub(crate) pool_loss_percent: u64,
    /// Percentage of starts of these nodes that do not find the memory, and begin with other memory.
    pub(crate) stray_percent: u64,
    /// The most copies that a put asks for.
    pub(crate) copies_max: u64,
    /// Memory for records and names is short.
    pub(crate) has_little_metadata: bool,
    /// Most puts want several copies.
    pub(crate) has_many_copies: bool,
    /// A node of another cluster tries to join.
    pub(crate) has_foreigner: bool,
    /// How long it usually takes at most to save the master's state.
    pub(crate) save_ms_max: u64,
    /// Percentage of puts that replace one generation only.
    pub(crate) replaces_percent: u64,
    /// Percentage of puts with a TTL, and the longest one.
    pub(crate) ttl_percent: u64,
    pub(crate) ttl_ms_max: u64,
    /// Percentage of all memory that is guaranteed to the second namespace; zero for no such minimum. Then
    /// half of the clients are in each namespace, and those of the first take what they can.
    pub(crate) guaranteed_percent: u64,
    /// An operator drains nodes, and cancels that.
    pub(crate) has_drains: bool,
    /// Mean time between two actions of the operator.
    pub(crate) drain_gap: u64,
    /// There are two masters with a common store. Clients only put, get and delete a few names.
    pub(crate) has_standby: bool,
    /// How long a leader of several goes on without a confirmation.
    pub(crate) give_up_ms: u64,
    pub(crate) master_stop_ms_max: u64,
    /// Percentage of clients that leave a master which is replaced, before it closes their connections.
    pub(crate) client_leaves_percent: u64,
}

/// How many of the worlds that may be hostile are.
const HOSTILE_PERCENT: u64 = 15;
/// How many worlds have many nodes.
const MANY_NODES_PERCENT: u64 = 2;
/// How many of the worlds that may have drain jobs do.
const DRAIN_PERCENT: u64 = 3;

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut plan = Self::draw_any(rng);
        let only = |faults: &[(Fault, u64)]| {
            let rate = |fault: &Fault| faults.iter().find(|it| it.0 == *fault).map_or(0, |it| it.1);
            Fault::ALL.iter().map(rate).collect()
        };
        match rng.below(8) {
            // Nodes are away for long without being lost, while the master restarts: conflicting objects of a
            // name meet.
            0 => {
                plan.faults = only(&[(Fault::LinkLong, 10), (Fault::MasterCrash, 4)]);
                (plan.fault_gap, plan.away_ms_max, plan.bar_ms) = (60, 1500, 250);
                plan.keys = plan.keys.min(5);
            }
            // Connections break all the time, and messages arrive late.
            1 => {
                plan.faults = only(&[(Fault::ClientBreak, 1)]);
                (plan.fault_gap, plan.delay_seldom, plan.late_percent) = (8, 80, 100);
                (plan.beat_ms, plan.pause_max, plan.sharing_percent) = (60, 10, 100);
                plan.view_percent = 50;
                (plan.capacity, plan.keys) = (20 * EXTENT_ALIGN, plan.keys.min(4));
            }
            // The master restarts all the time, while nodes are away, declared lost and back again, and while
            // its state folder is slow: what it has told and not saved, or not told, matters.
            2 => {
                plan.faults = only(&[
                    (Fault::LinkLong, 8),
                    (Fault::LinkBreak, 4),
                    (Fault::MasterCrash, 8),
                    (Fault::NodeCrash, *rng.pick(&[0, 4]).unwrap_or(&0)),
                ]);
                (plan.fault_gap, plan.save_ms_max) = (35, *rng.pick(&[40, 200]).unwrap_or(&40));
                (plan.away_ms_max, plan.bar_ms) = (*rng.pick(&[80, 200, 400]).unwrap_or(&200), 300);
                plan.forget_percent = *rng.pick(&[0, 60, 100]).unwrap_or(&60);
                (plan.keys, plan.pause_max) = (plan.keys.min(4), plan.pause_max.min(15));
                plan.has_many_copies = rng.percent(50);
            }
            _ => (),
        }
        plan
    }

    /// In some worlds memory for records and names is short, and objects have few extents.
    pub(crate) fn draw_metadata(&mut self, rng: &mut Rng) {
        if !rng.percent(40) {
            return;
        }
        self.has_little_metadata = true;
        self.chunk_bytes = *rng.pick(&[SLOT_BYTES, SLOT_BYTES, 4 * SLOT_BYTES]).unwrap_or(&SLOT_BYTES);
        self.chunks_free = rng.between(0, 4);
        self.slot_count = if rng.percent(50) { rng.between(2, 6) as u32 } else { 64 };
        self.heap_bytes = if rng.percent(50) { rng.between(3, 8) * self.chunk_bytes } else { 1 << 14 };
        self.extents_max = *rng.pick(&[1, 2, 4, EXTENTS_MAX]).unwrap_or(&1);
        // A chunk for the records and two for names, and some bytes.
        self.capacity = self.capacity.max(24 * EXTENT_ALIGN + 3 * self.chunk_bytes);
    }

    pub(crate) fn has_streams(&self) -> bool {
        self.stream_percent > 0
    }

    /// In some worlds most samples belong to a stream.
    pub(crate) fn draw_streams(&mut self, rng: &mut Rng) {
        if rng.percent(30) {
            self.stream_percent = rng.between(10, 50);
            self.sample_percent = self.sample_percent.max(rng.between(20, 80));
        }
    }

    /// In some worlds the master loses its state folder, or finds an old one.
    pub(crate) fn draw_state(&mut self, rng: &mut Rng) {
        if rng.percent(30) {
            self.state_loss_percent = *rng.pick(&[10, 50, 100]).unwrap_or(&50);
            self.regress_percent = *rng.pick(&[0, 50, 100]).unwrap_or(&50);
        }
    }

    pub(crate) fn has_pool(&self, node: usize) -> bool {
        node >= self.nodes.saturating_sub(self.pools)
    }

    /// In some worlds the memory of nodes outlives their process. In some of these nodes die all the time.
    pub(crate) fn draw_pools(&mut self, rng: &mut Rng) {
        if !rng.percent(24) {
            return;
        }
        self.pools = rng.between(1, self.nodes as u64) as usize;
        self.pool_loss_percent = *rng.pick(&[0, 10, 50]).unwrap_or(&10);
        if rng.percent(60) {
            let weight = self.faults.get_mut(Fault::NodeCrash as usize);
            weight.into_iter().for_each(|it| *it = 20);
            (self.fault_gap, self.pool_loss_percent) = (self.fault_gap.min(60), 0);
            (self.view_percent, self.sharing_percent) = (self.view_percent.max(30), 100);
            self.away_ms_max = *rng.pick(&[400, 2000]).unwrap_or(&400);
        }
    }

    /// In some of these worlds a node is started so that it does not find its memory, and later so that it
    /// does.
    pub(crate) fn draw_strays(&mut self, rng: &mut Rng) {
        if self.pools > 0 && rng.percent(40) {
            self.stray_percent = *rng.pick(&[20, 60]).unwrap_or(&20);
        }
    }

    /// In some worlds many puts replace one generation only.
    pub(crate) fn draw_replaces(&mut self, rng: &mut Rng) {
        self.replaces_percent = if rng.percent(25) { *rng.pick(&[30, 80]).unwrap_or(&30) } else { 0 };
        if self.replaces_percent > 0 {
            let weight = self.faults.get_mut(Fault::MasterCrash as usize);
            weight.into_iter().for_each(|it| *it = (*it).max(4));
        }
    }

    /// In some worlds many puts have a TTL. The wall clocks of their masters differ.
    pub(crate) fn draw_ttls(&mut self, rng: &mut Rng) {
        if rng.percent(20) {
            self.ttl_percent = *rng.pick(&[30, 80]).unwrap_or(&30);
            self.ttl_ms_max = *rng.pick(&[30, 150, 600]).unwrap_or(&150);
        }
    }

    /// In some worlds objects replace others on nodes that are away, and are evicted or expire soon, while
    /// the master's state folder is slow and the master restarts.
    pub(crate) fn draw_successors(&mut self, rng: &mut Rng) {
        if self.has_standby || self.has_disks() || !rng.percent(3) {
            return;
        }
        let rate = |fault: &Fault| match fault {
            Fault::LinkLong => 8,
            Fault::MasterCrash => 3,
            Fault::LinkBreak => 1,
            _ => 0,
        };
        self.faults = Fault::ALL.iter().map(rate).collect();
        (self.fault_gap, self.save_ms_max, self.state_loss_percent) = (70, 300, 0);
        (self.nodes, self.away_ms_max, self.bar_ms) = (3, 4000, 400);
        (self.capacity, self.keys) = (20 * EXTENT_ALIGN, rng.between(6, 10));
        (self.ttl_percent, self.ttl_ms_max) = (*rng.pick(&[0, 40]).unwrap_or(&0), 80);
        (self.pin_percent, self.sample_percent, self.view_percent, self.forget_percent) = (0, 0, 0, 0);
        self.pause_max = 8;
    }

    /// How lost copies are made again. In some worlds puts want more copies than there are nodes.
    pub(crate) fn draw_copies(&mut self, rng: &mut Rng) {
        self.copies_max = *rng.pick(&[2, 2, 3]).unwrap_or(&2);
        self.tier.repair = RepairConfig {
            delay_ms: *rng.pick(&[0, 50, 300, 1000]).unwrap_or(&50),
            copies_max: rng.between(1, 3) as usize,
            bytes_max: rng.between(4, 40) * EXTENT_ALIGN,
        };
    }

    /// In some worlds a node of another cluster is started with the master. A master that loses its state
    /// cannot tell that node from its own, so it does not in these worlds.
    pub(crate) fn draw_foreigner(&mut self, rng: &mut Rng) {
        if rng.percent(12) {
            (self.has_foreigner, self.state_loss_percent) = (true, 0);
        }
    }

    /// In some worlds the clients of two namespaces are hostile to each other, and one namespace has a
    /// guaranteed minimum. It is in the master's state folder, which is not lost there.
    pub(crate) fn draw_hostility(&mut self, rng: &mut Rng) {
        let is_other = self.has_standby || self.has_disks() || self.has_little_metadata || self.has_foreigner;
        if is_other || !rng.percent(HOSTILE_PERCENT) {
            return;
        }
        (self.guaranteed_percent, self.state_loss_percent) = (rng.between(20, 70), 0);
        (self.pin_percent, self.view_percent) = (rng.between(20, 60), *rng.pick(&[0, 30]).unwrap_or(&30));
        self.pause_max = self.pause_max.min(20);
    }

    /// The minimum that is guaranteed to the second namespace.
    pub(crate) fn guaranteed(&self) -> u64 {
        self.capacity * self.nodes as u64 * self.guaranteed_percent / 100
    }

    /// A few worlds have many nodes, whose objects want many copies.
    pub(crate) fn draw_nodes(&mut self, rng: &mut Rng) {
        if self.nodes < 2 || !rng.percent(MANY_NODES_PERCENT) {
            return;
        }
        self.nodes = rng.between(4, 8) as usize;
        let count = self.nodes as u64;
        self.same_host_nodes = rng.below(count + 1) as usize;
        self.disks = if self.has_disks() { rng.between(1, count) as usize } else { 0 };
        self.pools = match self.pools {
            0 => 0,
            _ if self.has_standby => self.nodes,
            _ => rng.between(1, count) as usize,
        };
        (self.copies_max, self.owed_page_max) = (rng.between(2, 6), rng.between(1, 2) as usize);
    }

    /// In some worlds an operator drains nodes, so that their objects move to the others.
    pub(crate) fn draw_drains(&mut self, rng: &mut Rng) {
        if self.has_standby || self.guaranteed_percent > 0 || !rng.percent(DRAIN_PERCENT) {
            return;
        }
        (self.has_drains, self.drain_gap) = (true, *rng.pick(&[100, 300, 800]).unwrap_or(&300));
    }

    /// Some worlds have two masters. Nothing is evicted or lost there, so that the answers which clients get
    /// must have an explanation.
    pub(crate) fn draw_standby(&mut self, rng: &mut Rng) {
        if !rng.percent(12) {
            return;
        }
        let mut rate = |high| if rng.percent(70) { rng.between(1, high) } else { 0 };
        let rates = [
            (Fault::MasterStop, 1 + rate(10)),
            (Fault::StoreCut, rate(8)),
            (Fault::MasterCrash, rate(4)),
            (Fault::BothCrash, rate(2)),
            (Fault::LinkBreak, rate(6)),
            (Fault::LinkLong, rate(2)),
            (Fault::ClientBreak, rate(4)),
            (Fault::ClientStall, rate(3)),
            (Fault::ClientCrash, rate(3)),
            (Fault::NodeStop, rate(4)),
            (Fault::NodeCrash, rate(3)),
        ];
        let rate = |fault: &Fault| rates.iter().find(|it| it.0 == *fault).map_or(0, |it| it.1);
        *self = Self {
            has_standby: true,
            give_up_ms: *rng.pick(&[600, 2_500]).unwrap_or(&600),
            master_stop_ms_max: *rng.pick(&[400, 800, 1_500]).unwrap_or(&800),
            client_leaves_percent: *rng.pick(&[10, 50, 80]).unwrap_or(&50),
            faults: Fault::ALL.iter().map(rate).collect(),
            fault_gap: *rng.pick(&[30, 80, 200]).unwrap_or(&80),
            capacity: 400 * EXTENT_ALIGN,
            slot_count: 200,
            heap_bytes: 400 * EXTENT_ALIGN,
            keys: rng.between(1, 3),
            pause_max: rng.between(4, 30),
            away_ms_max: 1_000_000,
            pools: self.nodes,
            copies_max: 2,
            ..Self::draw_any(rng)
        };
        self.pools = self.nodes;
        self.tier.repair = RepairConfig { delay_ms: 300, copies_max: 2, bytes_max: 40 * EXTENT_ALIGN };
        (self.pin_percent, self.sample_percent, self.forget_percent) = (0, 0, 0);
    }

    pub(crate) fn has_disks(&self) -> bool {
        self.disks > 0
    }

    pub(crate) fn has_disk(&self, node: usize) -> bool {
        node < self.disks
    }

    /// Some worlds have disks, with their own faults.
    pub(crate) fn draw_disks(&mut self, rng: &mut Rng) {
        if !rng.percent(35) {
            return;
        }
        self.disks = rng.between(1, self.nodes as u64) as usize;
        // A small disk evicts.
        let sixths = if rng.percent(50) { rng.between(1, 3) } else { rng.between(1, 12) };
        self.disk_capacity = self.capacity * sixths / 6;
        for fault in Fault::DISKS {
            let rate = if rng.percent(60) { rng.between(1, 10) } else { 0 };
            if let Some(weight) = self.faults.get_mut(fault as usize) {
                *weight = rate;
            }
        }
        let throttle = tiffin_throttle::Config {
            keys_max: rng.between(1, 4) as usize,
            bytes_max: rng.between(4, 40) * EXTENT_ALIGN,
            done_ttl: rng.between(1, 200),
            failed_ttl: rng.between(1, 60),
            cooldown: rng.between(1, 60),
            deadline: rng.between(20, 300),
            ..tiffin_throttle::Config::default()
        };
        // With fewer keys, more objects are read again that have left memory.
        self.tier_percent = *rng.pick(&[10, 25, 40]).unwrap_or(&25);
        self.tier = TierConfig {
            ahead_percent: rng.between(10, 70) as u8,
            promote_on_hit: rng.percent(60),
            promote_hits: rng.between(1, 3) as u8,
            memory_wait_ms: *rng.pick(&[20, 100, 400]).unwrap_or(&100),
            waiting_max: rng.between(1, 6) as usize,
            demotion: if rng.percent(40) { Demotion::WriteThrough } else { Demotion::OnPressure },
            protect_ms: *rng.pick(&[5, 30, 150]).unwrap_or(&30),
            away_ms_max: *rng.pick(&[400, 2000, 100_000]).unwrap_or(&400),
            throttle,
            repair: RepairConfig::default(),
        };
        match rng.below(10) {
            0..4 => self.draw_busy_disks(rng),
            4..6 => self.draw_stalling_disks(rng),
            _ => (),
        }
    }

    /// Puts without waiting arrive faster than the disks can write, without other faults: memory that a disk
    /// is reading is needed all the time.
    fn draw_stalling_disks(&mut self, rng: &mut Rng) {
        self.faults = Fault::ALL.iter().map(|it| u64::from(*it == Fault::DiskSlow)).collect();
        self.fault_gap = 60;
        (self.capacity, self.keys, self.slot_count) = (32 * EXTENT_ALIGN, 12, 40);
        self.heap_bytes = 80 * EXTENT_ALIGN;
        // With one node there is no alternative.
        (self.nodes, self.disks, self.disk_capacity) = (1, 1, self.capacity * 6);
        (self.sample_percent, self.pin_percent, self.view_percent, self.stream_percent) = (0, 0, 0, 0);
        (self.tier_percent, self.no_wait_percent, self.pause_max) = (5, rng.between(50, 90), 12);
        self.tier.ahead_percent = 70;
    }

    /// Everything is on slow disks, little of it fits into memory, and all of it is read: promotions fail,
    /// are late, and overlap.
    fn draw_busy_disks(&mut self, rng: &mut Rng) {
        let rate = |fault: &Fault| match fault {
            Fault::DiskSlow => 10,
            Fault::DiskFails | Fault::DiskFlip | Fault::DiskFills => 4,
            Fault::DiskLink | Fault::LinkBreak => 1,
            _ => 0,
        };
        self.faults = Fault::ALL.iter().map(rate).collect();
        self.fault_gap = 40;
        (self.capacity, self.keys) = (24 * EXTENT_ALIGN, self.keys.min(6));
        (self.disks, self.disk_capacity) = (self.nodes, self.capacity * 6);
        (self.tier_percent, self.sample_percent, self.pin_percent) = (50, 0, 0);
        self.tier.demotion = Demotion::WriteThrough;
        let throttle = &mut self.tier.throttle;
        (throttle.deadline, throttle.bytes_max) = (rng.between(10, 60), 60 * EXTENT_ALIGN);
        (throttle.done_ttl, throttle.failed_ttl, throttle.cooldown) = (5, 1, 2);
    }

    fn draw_any(rng: &mut Rng) -> Self {
        let is_special = |it: &Fault| Fault::DISKS.contains(it) || Fault::MASTERS.contains(it);
        let faults = Fault::ALL.iter().filter(|it| !is_special(it));
        let faults = faults.map(|_| if rng.percent(55) { rng.between(1, 10) } else { 0 });
        let mut faults: Vec<_> = faults.collect();
        faults.resize(Fault::ALL.len(), 0);
        let slot_count = rng.between(10, 40);
        Self {
            nodes: rng.between(2, 3) as usize,
            same_host_nodes: rng.below(4) as usize,
            clients: rng.between(3, 5) as usize,
            capacity: rng.between(20, 72) * EXTENT_ALIGN,
            slot_count: slot_count as u32,
            heap_bytes: slot_count * EXTENT_ALIGN * rng.between(1, 2),
            chunk_bytes: 80 * EXTENT_ALIGN,
            chunks_free: 2,
            extents_max: EXTENTS_MAX,
            silence_ms_max: 150,
            away_ms_max: 400,
            bar_ms: 400,
            lease_ms: rng.between(20, 200),
            lease_grace_ms: 150,
            strict_leases: rng.percent(30),
            evict_soft_pinned: rng.percent(70),
            piece_objects_max: rng.between(1, 3) as usize,
            owed_page_max: *rng.pick(&[1, 2, 1 << 16]).unwrap_or(&1),
            delay_usual: rng.between(1, 6),
            delay_seldom: rng.between(10, 80),
            sharing_percent: *rng.pick(&[0, 50, 50, 100]).unwrap_or(&50),
            keys: rng.between(3, 12),
            pin_percent: *rng.pick(&[0, 10, 30, 60]).unwrap_or(&10),
            sample_percent: *rng.pick(&[5, 15, 50]).unwrap_or(&15),
            beat_ms: 120,
            view_percent: 0,
            late_percent: 60,
            pause_max: rng.between(10, 60),
            faults,
            fault_gap: *rng.pick(&[20, 60, 150, 400]).unwrap_or(&60),
            stream_percent: 0,
            disks: 0,
            disk_capacity: 0,
            tier_percent: 0,
            no_wait_percent: 0,
            tier: TierConfig::default(),
            forget_percent: *rng.pick(&[0, 0, 0, 10, 40]).unwrap_or(&0),
            state_loss_percent: 0,
            regress_percent: 0,
            pools: 0,
            pool_loss_percent: 0,
            stray_percent: 0,
            copies_max: 2,
            has_little_metadata: false,
            has_many_copies: false,
            has_foreigner: false,
            save_ms_max: 40,
            replaces_percent: 0,
            ttl_percent: 0,
            ttl_ms_max: 0,
            guaranteed_percent: 0,
            has_drains: false,
            drain_gap: 0,
            has_standby: false,
            give_up_ms: 0,
            master_stop_ms_max: 0,
            client_leaves_percent: 0,
        }
    }
}
