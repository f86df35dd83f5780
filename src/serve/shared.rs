//! Implements `RemoteStore` for the Redis store.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::store_dispatch::RemoteStore;
use crate::core::call::{Call, Grant, StoreError};
use crate::core::key::Digest;
use crate::store::outcomes::Outcomes;
use crate::store::redis::{RedisStore, Snapshot};
use crate::store::turns::Asker;

impl RemoteStore for RedisStore {
    fn call<'a>(
        &'a self,
        asker: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
        Box::pin(self.call_for(asker, call))
    }

    fn is_late(&self) -> bool {
        RedisStore::is_late(self)
    }

    fn hurry(&self, asker: Asker, digest: Digest) {
        RedisStore::hurry(self, asker, digest);
    }

    fn runtime(&self) -> Handle {
        RedisStore::runtime(self).clone()
    }

    fn snapshot(&self) -> Option<Snapshot> {
        Some(RedisStore::snapshot(self))
    }

    fn send(self: Arc<Self>, asker: Asker, call: Box<Call>, outcomes: Arc<dyn Outcomes>) {
        RedisStore::send(&self, asker, call, outcomes);
    }
}
