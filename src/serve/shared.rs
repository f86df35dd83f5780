//! The shared store as the refill room calls it.

use std::future::Future;
use std::pin::Pin;

use super::refill::Remote;
use crate::core::call::{Call, Grant, StoreError};
use crate::store::redis::RedisStore;
use crate::store::turns::Asker;

impl Remote for RedisStore {
    fn call<'a>(
        &'a self,
        asker: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
        Box::pin(self.call_for(asker, call))
    }
}
