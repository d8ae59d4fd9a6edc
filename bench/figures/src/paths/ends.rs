//! Both ends of the connections, with threads and blocking sockets, because the kernel's
//! work is measured.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const UPLOAD_PORT: u16 = 8001;
const WEB_PORT: u16 = 8002;

const SERVER_THREADS: usize = 4;
const CLIENT_THREADS: usize = 8;
const CHUNK_BYTES: usize = 128 << 10;
const TIMEOUT: Duration = Duration::from_secs(2);

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

/// Which end.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// What a client does; without it this is the server
    #[arg(long, requires_all = ["address", "seconds"])]
    pub client: Option<Client>,
    /// The server's
    #[arg(long)]
    pub address: Option<Ipv4Addr>,
    /// How long
    #[arg(long)]
    pub seconds: Option<f64>,
}

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    /// Sends on one connection.
    Upload,
    /// Makes one connection after the other, for one request each.
    Requests,
}

impl Client {
    pub(super) fn name(self) -> &'static str {
        match self {
            Client::Upload => "upload",
            Client::Requests => "requests",
        }
    }
}

/// Serves until standard input ends, or reports what a client saw.
///
/// # Errors
/// If a socket fails.
pub fn run(options: &Options) -> Result<(), String> {
    let Options { client, address, seconds } = options;
    let (Some(client), Some(address), Some(seconds)) = (client, address, seconds) else {
        return serve().map_err(|error| format!("the server: {error}"));
    };
    let (address, duration) = (IpAddr::V4(*address), Duration::from_secs_f64(*seconds));
    let answer = match client {
        Client::Upload => upload(SocketAddr::new(address, UPLOAD_PORT), duration),
        Client::Requests => Ok(requests(SocketAddr::new(address, WEB_PORT), duration)),
    };
    println!("{}", answer.map_err(|error| format!("{}: {error}", client.name()))?);
    Ok(())
}

fn serve() -> io::Result<()> {
    for (port, threads, answer) in [
        (UPLOAD_PORT, 1, swallow as fn(TcpStream) -> io::Result<()>),
        (WEB_PORT, SERVER_THREADS, respond),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
        for _ in 0..threads {
            let listener = listener.try_clone()?;
            thread::spawn(move || {
                // A client that gave up is not the server's failure.
                listener.incoming().flatten().for_each(|stream| _ = answer(stream));
            });
        }
    }
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Reads to the end, and says how much that was.
fn swallow(mut stream: TcpStream) -> io::Result<()> {
    let (mut chunk, mut bytes) = (vec![0; CHUNK_BYTES], 0_u64);
    loop {
        match stream.read(&mut chunk)? {
            0 => return stream.write_all(&bytes.to_be_bytes()),
            read => bytes += read as u64,
        }
    }
}

fn respond(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.read_exact(&mut [0; REQUEST.len()])?;
    stream.write_all(RESPONSE)
}

fn upload(to: SocketAddr, duration: Duration) -> io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (chunk, start) = (vec![0; CHUNK_BYTES], Instant::now());
    while start.elapsed() < duration {
        stream.write_all(&chunk)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    let bits = u64::from_be_bytes(bytes) as f64 * 8.0;
    Ok(json!({"gbps": bits / start.elapsed().as_secs_f64() / 1e9}))
}

fn requests(to: SocketAddr, duration: Duration) -> Value {
    let (done, failures, start) = (AtomicU64::new(0), Mutex::new(Vec::new()), Instant::now());
    thread::scope(|scope| {
        for _ in 0..CLIENT_THREADS {
            scope.spawn(|| {
                while start.elapsed() < duration {
                    let begun = Instant::now();
                    match request(to) {
                        Ok(()) => _ = done.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            let failure = format!("after {:.1?}: {error}", begun.elapsed());
                            failures.lock().expect("no thread panics").push(failure);
                        }
                    }
                }
            });
        }
    });
    let done = done.load(Ordering::Relaxed);
    let per_second = done as f64 / start.elapsed().as_secs_f64();
    json!({"per_second": per_second, "done": done, "failures": failures.into_inner().expect("no thread panics")})
}

fn request(to: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(REQUEST)?;
    let mut response = Vec::with_capacity(RESPONSE.len());
    stream.read_to_end(&mut response)?;
    if response == RESPONSE { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
