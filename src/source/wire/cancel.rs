//! Cancelling what runs on a connection, from another thread, over a connection of its own.

use std::sync::Arc;

use super::error::broken;
use super::startup::dial;
use super::stream::Address;
use crate::error::Result;
use crate::source::options::{ConnectOptions, Host};

/// The code of a CancelRequest (protocol 3.0).
const CANCEL: u32 = 80_877_102;

/// Names one server process and the secret that allows cancelling it.
#[derive(Clone)]
pub struct CancelHandle {
    options: Arc<ConnectOptions>,
    host: Host,
    address: Address,
    with_tls: bool,
    /// Process and secret as the server sent them.
    key: Arc<[u8]>,
}

impl CancelHandle {
    pub(super) fn none(
        o: &Arc<ConnectOptions>,
        host: &Host,
        address: &Address,
        with_tls: bool,
    ) -> Self {
        let (options, host, address) = (o.clone(), host.clone(), address.clone());
        CancelHandle { options, host, address, with_tls, key: Arc::from([]) }
    }

    pub(super) fn set_key(&mut self, key: &[u8]) {
        self.key = Arc::from(key);
    }

    /// Asks the server to cancel; returns once it has taken note. What ran fails with SQLSTATE
    /// 57014, if it had not ended before.
    ///
    /// # Errors
    /// Transient: the server can't be reached.
    pub fn cancel(&self) -> Result<()> {
        let mut stream = dial(&self.options, &self.host, &self.address, self.with_tls)?;
        let mut request = Vec::with_capacity(8 + self.key.len());
        request.extend(u32::try_from(8 + self.key.len()).unwrap_or(0).to_be_bytes());
        request.extend(CANCEL.to_be_bytes());
        request.extend(&*self.key);
        stream.write_all(&request).map_err(|e| broken("sending a cancel request", e))?;
        // The server answers by hanging up.
        let mut rest = [0; 64];
        while matches!(stream.read(&mut rest), Ok(n) if n > 0) {}
        Ok(())
    }

    /// How the connection was made: options, host, its address, and whether by TLS.
    pub(super) fn way(&self) -> (&Arc<ConnectOptions>, &Host, &Address, bool) {
        (&self.options, &self.host, &self.address, self.with_tls)
    }

    /// The number of the server's process, as in `pg_stat_activity`.
    pub fn process_id(&self) -> Option<u32> {
        self.key.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }
}

impl std::fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelHandle({:?} at {})", self.process_id(), self.host.label())
    }
}
