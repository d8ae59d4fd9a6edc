//! A minimal HTTP/1.1 server for scrapers: GET /metrics, one request per connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::SharedPage;

/// A request's head; scrapers send some hundred bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// How long a client may take to send it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the rest may take: the page is made, and read. 30 MB in this time
/// are 16 Mbit/s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Connections at a time; more wait in the kernel's queue. Each takes some
/// 10 KiB, pages are shared.
const CONNECTIONS_MAX: usize = 512;

/// What the kernel holds for a client that does not read; it would take up to
/// 4 MiB.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// Serves until dropped.
pub async fn serve(listener: TcpListener, page: SharedPage) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = page.clone();
                tokio::spawn(async move {
                    // A client that hung up or was too slow is not waited for.
                    let _ = answer(stream, page).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors: others may be closed meanwhile.
                tracing::warn!(%error, "accepting a scraper's connection failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, page: SharedPage) -> io::Result<()> {
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
    let head = timeout(HEAD_TIMEOUT, read_head(&mut stream)).await??;
    let (status, text) = match request(&head) {
        Some(("GET", "/metrics")) => {
            return timeout(ANSWER_TIMEOUT, async move {
                let page = page.get().await;
                send(&mut stream, "200 OK", &page).await
            })
            .await?;
        }
        Some(("GET", _)) => ("404 Not Found", "The metrics are at /metrics.\n"),
        Some(_) => ("405 Method Not Allowed", "Only GET.\n"),
        None => ("400 Bad Request", "Not a request.\n"),
    };
    timeout(ANSWER_TIMEOUT, send(&mut stream, status, text)).await?
}

async fn send(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads to the empty line, or as much as we are willing to.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

/// Method and path of `GET /metrics?x HTTP/1.1`.
fn request(head: &[u8]) -> Option<(&str, &str)> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    version.starts_with("HTTP/1.").then(|| (method, target.split('?').next().unwrap_or(target)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exchange(request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, SharedPage::new(|| "guideway_forwarder_up 1\n".to_owned())));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_scrape_gets_the_page() {
        let answer = exchange("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nguideway_forwarder_up 1\n"), "{answer}");
    }

    #[tokio::test]
    async fn anything_else_is_refused_by_number() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("rubbish\r\n\r\n", "400"),
        ] {
            let answer = exchange(request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
        }
    }

    #[tokio::test]
    async fn quick_clients_are_answered_beside_slow_ones_and_one_page_is_in_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let times = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = Arc::clone(&times);
        tokio::spawn(serve(
            listener,
            SharedPage::new(move || {
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                "guideway_forwarder_up 1\n".repeat(1 << 18)
            }),
        ));
        let mut slow = Vec::new();
        for _ in 0..200 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
            slow.push(stream);
        }
        for _ in 0..10 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer.len() > 6 << 20, "{} bytes", answer.len());
        }
        assert!(times.load(std::sync::atomic::Ordering::Relaxed) < 20);
    }
}
