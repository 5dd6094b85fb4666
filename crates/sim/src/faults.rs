//! Fault injection.

use crate::{
    coverage::Point,
    standby::MASTERS,
    world::{Event, Party, Phase, World},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    ClientBreak,
    LinkBreak,
    LinkLong,
    DataBreak,
    ClientCrash,
    ClientStall,
    NodeCrash,
    NodeStop,
    MasterCrash,
    ClockJump,
    ClockBack,
    ClockStop,
    ClockRate,
    ClientClock,
    DiskLink,
    DiskLinkLong,
    DiskFails,
    DiskSlow,
    DiskFlip,
    DiskLoses,
    DiskFills,
    MasterStop,
    StoreCut,
    BothCrash,
}

impl Fault {
    /// The faults of disks, behind the others.
    pub(crate) const DISKS: [Self; 7] = [
        Self::DiskLink,
        Self::DiskLinkLong,
        Self::DiskFails,
        Self::DiskSlow,
        Self::DiskFlip,
        Self::DiskLoses,
        Self::DiskFills,
    ];
    /// The faults of two masters, behind those.
    pub(crate) const MASTERS: [Self; 3] = [Self::MasterStop, Self::StoreCut, Self::BothCrash];
    pub(crate) const ALL: [Self; 24] = [
        Self::ClientBreak,
        Self::LinkBreak,
        Self::LinkLong,
        Self::DataBreak,
        Self::ClientCrash,
        Self::ClientStall,
        Self::NodeCrash,
        Self::NodeStop,
        Self::MasterCrash,
        Self::ClockJump,
        Self::ClockBack,
        Self::ClockStop,
        Self::ClockRate,
        Self::ClientClock,
        Self::DiskLink,
        Self::DiskLinkLong,
        Self::DiskFails,
        Self::DiskSlow,
        Self::DiskFlip,
        Self::DiskLoses,
        Self::DiskFills,
        Self::MasterStop,
        Self::StoreCut,
        Self::BothCrash,
    ];
}

impl World {
    pub(crate) fn next_fault(&mut self) {
        if self.phase != Phase::Faults {
            return;
        }
        let gap = self.rng.between(1, 2 * self.plan.fault_gap);
        self.at(self.now + gap, Event::Fault);
        let total: u64 = Fault::ALL.iter().map(|&it| self.fault_rate(it)).sum();
        let mut drawn = self.rng.below(total);
        for fault in Fault::ALL {
            let rate = self.fault_rate(fault);
            if drawn < rate {
                self.log.line(self.now, "fault", &[fault as u64], &[]);
                self.log.note(|| format!("{fault:?}"));
                return self.inject(fault);
            }
            drawn -= rate;
        }
    }

    fn inject(&mut self, fault: Fault) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let client = self.rng.below(self.clients.len() as u64) as usize;
        match fault {
            Fault::ClientBreak => self.break_random_conn(client),
            Fault::LinkBreak => self.break_link(node, 0),
            Fault::LinkLong => {
                let away = self.plan.bar_ms + self.rng.below(200);
                self.break_link(node, away);
            }
            Fault::DataBreak => {
                let open = self.transfers.iter().filter(|(_, it)| it.socket && !it.violation);
                let open: Vec<_> = open.map(|(id, _)| *id).collect();
                if let Some(&id) = self.rng.pick(&open) {
                    self.coverage.hit(Point::FaultDataBreak);
                    self.break_transfer(id);
                }
            }
            Fault::ClientCrash => {
                if self.is_up(Party::Client(client)) {
                    self.coverage.hit(Point::FaultClientCrash);
                    self.crash_client(client);
                }
            }
            Fault::ClientStall => self.stall(client),
            Fault::NodeCrash => {
                if self.is_up(Party::Node(node)) {
                    self.coverage.hit(Point::FaultNodeCrash);
                    let down = self.rng.delay(50, 600);
                    self.crash_node(node, down);
                    self.maybe_crash_host(node);
                }
            }
            Fault::NodeStop => {
                let until = self.now + self.rng.delay(200, 700);
                if let Some(it) = self.nodes.get_mut(node).filter(|it| it.core.is_some()) {
                    // An earlier stop is not shortened.
                    it.stopped_until = it.stopped_until.max(until);
                    self.coverage.hit(Point::FaultNodeStop);
                }
            }
            Fault::MasterCrash | Fault::MasterStop | Fault::StoreCut | Fault::BothCrash => {
                self.inject_master(fault);
            }
            Fault::ClockJump | Fault::ClockBack | Fault::ClockStop | Fault::ClockRate => {
                self.inject_clock(fault);
            }
            Fault::DiskLink
            | Fault::DiskLinkLong
            | Fault::DiskFails
            | Fault::DiskSlow
            | Fault::DiskFlip
            | Fault::DiskLoses
            | Fault::DiskFills => self.inject_disk(fault, node),
            Fault::ClientClock => {
                let rate = self.rate();
                if let Some(it) = self.clients.get_mut(client).filter(|it| it.alive) {
                    it.clock_percent = rate;
                    self.coverage.hit(Point::FaultClientClock);
                }
            }
        }
    }

    /// Injects a fault of a master. Of two it is mostly the leader.
    fn inject_master(&mut self, fault: Fault) {
        if !self.has_standby() {
            if fault == Fault::MasterCrash && self.is_up(Party::Master) {
                self.coverage.hit(Point::FaultMasterCrash);
                let down = self.rng.delay(30, 200);
                self.crash_master(down);
            }
            return;
        }
        let leading: Vec<_> = (0..MASTERS).filter(|it| self.is_up(Party::Standby(*it))).collect();
        let master = self.rng.pick(&leading).copied().unwrap_or(0);
        let master = if self.rng.percent(80) { master } else { self.rng.below(MASTERS as u64) as usize };
        let down = self.rng.delay(30, 300);
        match fault {
            Fault::MasterStop => self.stop_standby(master),
            Fault::StoreCut => self.cut_standby(master),
            Fault::MasterCrash => self.crash_standby(master, down),
            _ => (0..MASTERS).for_each(|it| self.crash_standby(it, down)),
        }
    }

    /// Injects a fault of a disk, or of its link.
    fn inject_disk(&mut self, fault: Fault, node: usize) {
        let now = self.now;
        let (until, away) = (now + self.rng.delay(100, 500), self.plan.bar_ms + self.rng.below(200));
        let drawn = self.rng.any();
        let Some(disk) = self.disk(node).filter(|it| it.core.is_some()) else { return };
        let point = match fault {
            Fault::DiskFails => {
                disk.log.fails_until = until;
                Point::FaultDiskFails
            }
            Fault::DiskSlow => {
                disk.log.slow_until = until;
                Point::FaultDiskSlow
            }
            Fault::DiskFills => {
                disk.log.full_until = until;
                Point::FaultDiskFills
            }
            Fault::DiskLoses => {
                disk.log.lose_completions = 1 + (drawn % 2) as u32;
                Point::FaultDiskLoses
            }
            Fault::DiskFlip => {
                let count = disk.log.copies.len().max(1);
                let Some(kept) = disk.log.copies.values_mut().nth(drawn as usize % count) else { return };
                kept.flipped = true;
                Point::FaultDiskFlip
            }
            _ => {
                let barred_until = if fault == Fault::DiskLink { 0 } else { now + away };
                disk.barred_until = disk.barred_until.max(barred_until);
                let Some(link) = disk.link else { return };
                self.break_conn(link);
                if fault == Fault::DiskLink { Point::FaultDiskLink } else { Point::FaultDiskLinkLong }
            }
        };
        self.coverage.hit(point);
    }

    /// The processes of the master's host may be killed together.
    fn maybe_crash_host(&mut self, node: usize) {
        let is_near = self.plan.has_pool(node) && node < self.plan.same_host_nodes;
        if is_near && self.is_up(Party::Master) && self.rng.once_in(3) {
            self.coverage.hit(Point::FaultMasterCrash);
            let down = self.rng.delay(30, 200);
            self.crash_master(down);
        }
    }

    /// The master's clock jumps, stops, or runs at another rate.
    fn inject_clock(&mut self, fault: Fault) {
        match fault {
            Fault::ClockJump => {
                self.coverage.hit(Point::FaultClockJump);
                self.clock.ahead += self.rng.delay(200, 2000) as i64;
            }
            Fault::ClockBack => {
                self.coverage.hit(Point::FaultClockBack);
                self.clock.ahead -= self.rng.delay(50, 500) as i64;
            }
            Fault::ClockStop => {
                let now = self.master_now().0;
                self.clock.stopped_at = Some(now);
                self.coverage.hit(Point::FaultClockStop);
                let until = self.now + self.rng.delay(100, 500);
                self.at(until, Event::ClockResumes);
            }
            _ => {
                self.coverage.hit(Point::FaultClockRate);
                let rate = self.rate();
                self.clock.set_rate(self.now, rate);
            }
        }
    }

    /// A random clock rate, in percent of the simulated time.
    fn rate(&mut self) -> u64 {
        *self.rng.pick(&[25, 50, 90, 100, 110, 200, 400]).unwrap_or(&100)
    }

    /// A process that was stopped for long often finds its connections closed.
    fn stall(&mut self, client: usize) {
        let until = self.now + self.rng.delay(200, 900);
        let cut = self.rng.percent(60);
        let Some(it) = self.clients.get_mut(client).filter(|it| it.alive) else { return };
        it.stopped_until = it.stopped_until.max(until);
        let conns: Vec<_> = it.links.values().filter_map(|it| it.conn).collect();
        self.coverage.hit(Point::FaultClientStall);
        if cut {
            conns.into_iter().for_each(|conn| self.break_conn(conn));
        }
    }

    fn break_random_conn(&mut self, client: usize) {
        let Some(it) = self.clients.get(client).filter(|it| it.alive) else { return };
        let open: Vec<_> = it.links.values().filter_map(|it| it.conn).collect();
        if let Some(&conn) = self.rng.pick(&open) {
            self.coverage.hit(Point::FaultClientBreak);
            self.break_conn(conn);
        }
    }

    fn break_link(&mut self, node: usize, away_ms: u64) {
        let barred_until = self.now + away_ms;
        let Some(it) = self.nodes.get_mut(node).filter(|it| it.core.is_some()) else { return };
        it.barred_until = it.barred_until.max(barred_until);
        let Some(link) = it.link else { return };
        self.coverage.hit(if away_ms == 0 { Point::FaultLinkBreak } else { Point::FaultLinkLong });
        self.break_conn(link);
    }
}
