//! What a server does with a letter: turns it away, sends it elsewhere, or runs the script.

use rationd::core::time::Timestamp;
use rationd::store::script::{self, Caller, Script};

use crate::earlier;
use crate::observe::{Moment, Ran, Seen};
use crate::world::build::Build;
use crate::world::cluster::{Course, Standing};
use crate::world::event::Event;
use crate::world::excerpts::Look;
use crate::world::joined::{self, Part};
use crate::world::keys::{PREFIX, hash_of};
use crate::world::message::Reply;
use crate::world::network::Heading;
use crate::world::state::World;

/// Part of the call's timeout for which a server waits for its replica.
const PATIENCE: u64 = 2;

impl World<'_> {
    /// A letter reaches a server.
    pub(in crate::world) fn at_server(&mut self, id: u64, server: u32) {
        let Some(letter) = self.letters.get_mut(&id) else { return };
        let place = &self.cluster.servers[server as usize];
        if place.paused_until > self.now {
            return self.queue.push(place.paused_until, Event::AtServer { letter: id, server });
        }
        letter.copies -= 1;
        if let Some((at, reply)) = self.serve(id, server) {
            self.reply(id, server, at, reply);
        }
        self.shred(id);
    }

    /// The server's answer, and when it leaves; `None` when it waits for the replica.
    fn serve(&mut self, id: u64, server: u32) -> Option<(u64, Reply)> {
        let letter = &self.letters[&id];
        let place = &self.cluster.servers[server as usize];
        if place.standing == Standing::Dead {
            return Some((self.now, Reply::Lost));
        }
        if place.refuses {
            return Some((self.now, Reply::Refused));
        }
        let key = hash_of(letter.call.digest);
        match self.cluster.course(server, letter.call.digest, &key, letter.asking, self.now) {
            Course::Moved(to) => return Some((self.now, Reply::Moved(to))),
            Course::Ask(to) => return Some((self.now, Reply::Ask(to))),
            Course::Here => {}
        }
        let name = Script::of(&letter.call).name;
        if letter.with_source {
            self.cluster.server(server).scripts.insert(name);
        } else if !place.scripts.contains(name) {
            return Some((self.now, Reply::NoScript));
        }
        self.execute(id, server, &key)
    }

    fn execute(&mut self, id: u64, server: u32, key: &str) -> Option<(u64, Reply)> {
        let start = self.now.max(self.cluster.servers[server as usize].busy_until);
        let done = start + self.cluster.cost();
        let time = self.cluster.time(server, start);
        if self.cluster.has_ended_early(server, key, time) {
            self.see_key(key, |key, store| Seen::Lost { key, store });
        }
        let cut_to = self.cluster.cut_to(server, key);
        let letter = &self.letters[&id];
        let place = self.cluster.server(server);
        place.busy_until = done;
        let node = &self.nodes[letter.node as usize];
        let caller = Caller { prefix: PREFIX, node: &node.name, now: None };
        let is_earlier = self.grapevine.build_of(letter.node) == Build::Older;
        let of_earlier = is_earlier.then(|| earlier::call(&letter.call));
        let call = of_earlier.as_ref().unwrap_or(&letter.call);
        let look = Look::before(&place.keyspace, key, &node.name, time, call);
        let finds = (!is_earlier && joined::can_join(call)).then(|| place.keyspace.look(key, time));
        let found = finds.filter(|finds| self.joining.gathers(call, *finds)).map(|finds| finds.cloned());
        let ran = if is_earlier {
            let arguments = |push: &mut dyn FnMut(&[u8])| earlier::arguments(&caller, call, push);
            let ran = self.scripts.run(&mut place.keyspace, earlier::of(&call.op), key, time, arguments);
            ran.map(|numbers| earlier::reply(&numbers, call))
        } else {
            let arguments = |push: &mut dyn FnMut(&[u8])| script::arguments(&caller, call, push);
            self.scripts.run(&mut place.keyspace, Script::of(call), key, time, arguments)
        };
        let numbers = ran.unwrap_or_else(|error| panic!("a script failed: {error}"));
        let grant = script::grant(call, &numbers).expect("the scripts answer as script.rs reads");
        let stale = place.standing != Standing::Primary;
        let ran = &Ran { is_earlier, ..look.after(&place.keyspace) };
        if cut_to.is_some() && cut_to != self.cluster.cut_to(server, key) {
            self.cluster.renew(key);
        }
        let master = self.cluster.servers[server as usize].master;
        let (wait, master, moment) =
            (letter.wait, master, Moment { at: self.now, store: self.cluster.exact(self.now) });
        let (node, incarnation, key, grant) = (letter.node, letter.incarnation, letter.key, &grant);
        self.watch.see(moment, &Seen::Executed { master, node, incarnation, key, call, grant, stale, ran });
        let together =
            found.and_then(|found| self.joining.add((node, server), Part { key, call: call.clone(), found }));
        if let Some(parts) = together {
            self.rehearse_together(node, Timestamp(time), parts);
        }
        self.letters.get_mut(&id).expect("it is being served").executed = true;
        if !wait {
            return Some((done, Reply::Grant { numbers, replicated: None }));
        }
        let patience = self.plan.daemon.timeout.0 / PATIENCE;
        let replicated = self.cluster.replicates(server, done);
        if self.cluster.confirms(server) && replicated - done <= patience {
            self.queue.push(replicated, Event::Replicated { letter: id, server, numbers });
            return None;
        }
        Some((done + patience, Reply::Grant { numbers, replicated: Some(false) }))
    }

    /// The replica has had its time to follow.
    pub(in crate::world) fn replicated(&mut self, id: u64, server: u32, numbers: Vec<i64>) {
        if self.cluster.servers[server as usize].standing == Standing::Dead {
            return;
        }
        let paused = self.cluster.servers[server as usize].paused_until;
        if paused > self.now {
            return self.queue.push(paused, Event::Replicated { letter: id, server, numbers });
        }
        let confirmed = self.cluster.confirms(server);
        let late = if confirmed { 0 } else { self.plan.daemon.timeout.0 / PATIENCE };
        self.reply(id, server, self.now + late, Reply::Grant { numbers, replicated: Some(confirmed) });
    }

    /// Sends an answer at `at`.
    fn reply(&mut self, id: u64, server: u32, at: u64, reply: Reply) {
        if self.is_streams() {
            return self.queue.push(at, Event::Leaves { letter: id, reply: Box::new(reply) });
        }
        let Some(letter) = self.letters.get(&id) else { return };
        if self.cluster.is_apart(letter.node, server) {
            return;
        }
        let master = self.cluster.servers[server as usize].master;
        let arrivals = self.network.send(at, letter.node, master, Heading::FromRedis);
        for at in arrivals.into_iter().flatten() {
            self.queue.push(at, Event::AtNode { letter: id, reply: Box::new(reply.clone()) });
        }
    }
}
