//! A very small HTTP/1.1 server for scrapers: GET /metrics, one request per
//! connection, nothing else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A request's head; scrapers send some hundred bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Slow clients must not pile up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the page at each scrape.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves until dropped.
pub async fn serve(listener: TcpListener, render: Render) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let render = Arc::clone(&render);
                tokio::spawn(async move { timeout(PATIENCE, answer(stream, render)).await });
            }
            Err(error) => {
                // Out of file descriptors: others may be closed meanwhile.
                tracing::warn!(%error, "accepting a scraper's connection failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, render: Render) -> io::Result<()> {
    let head = read_head(&mut stream).await?;
    let (status, body) = match request(&head) {
        Some(("GET", "/metrics")) => ("200 OK", render()),
        Some(("GET", _)) => ("404 Not Found", "The metrics are at /metrics.\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "Only GET.\n".to_owned()),
        None => ("400 Bad Request", "Not a request.\n".to_owned()),
    };
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
        tokio::spawn(serve(listener, Arc::new(|| "guideway_forwarder_up 1\n".to_owned())));
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
}
