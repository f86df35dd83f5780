//! Throwaway.
use std::collections::HashMap;
/// Keyed.
pub trait Keyed {
    /// digest
    fn digest(&self) -> u128;
}
/// T
#[derive(Debug)]
pub struct Table<T> {
    map: HashMap<u128, u32>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    max: usize,
}
impl<T: Keyed> Table<T> {
    pub fn new(max: usize, _secret: u128) -> Self {
        Self { map: HashMap::new(), slots: vec![], free: vec![], max }
    }
    pub fn find(&self, d: u128) -> Option<u32> {
        self.map.get(&d).copied()
    }
    pub fn len(&self) -> usize {
        self.map.len()
    }
    pub fn is_full(&self) -> bool {
        self.map.len() >= self.max
    }
    pub fn insert(&mut self, t: T) -> Result<u32, T> {
        if self.is_full() {
            return Err(t);
        }
        let i = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.map.insert(t.digest(), i);
        self.slots[i as usize] = Some(t);
        Ok(i)
    }
    pub fn remove(&mut self, i: u32) -> T {
        let t = self.slots[i as usize].take().unwrap();
        self.map.remove(&t.digest());
        self.free.push(i);
        t
    }
    pub fn get_mut(&mut self, i: u32) -> &mut T {
        self.slots[i as usize].as_mut().unwrap()
    }
    pub fn try_get_mut(&mut self, i: u32) -> Option<&mut T> {
        self.slots.get_mut(i as usize)?.as_mut()
    }
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }
    pub fn handles(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().enumerate().filter(|(_, s)| s.is_some()).map(|(i, _)| i as u32)
    }
    pub fn next_handle(&self, after: u32) -> Option<u32> {
        let n = self.slots.len();
        (1..=n).map(|k| (after as usize + k) % n).find(|&i| self.slots[i].is_some()).map(|i| i as u32)
    }
}
