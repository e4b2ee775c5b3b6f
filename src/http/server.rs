//! Takes connections: few at a time, each for a short time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::routes::Desk;

/// Connections at a time; the next one is closed at once.
const MOST: usize = 32;
/// For a client to say what it wants.
const HEADER_WITHIN: Duration = Duration::from_secs(5);
/// For the whole of it, so that a client that does not read ends too.
const ALL_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of a request's head.
const HEAD: usize = 16 << 10;

/// Answers until the task is aborted.
pub async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No file descriptors, for example: others need them more.
                tracing::debug!("a connection could not be taken: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let desk = desk.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(ALL_WITHIN, serve(stream, &desk)).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, desk: &Desk) {
    let answer = service_fn(|request| async move { Ok::<_, Infallible>(desk.answer(&request)) });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WITHIN)
        .max_buf_size(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!("a client of the status page: {error}");
    }
}
