//! The service manager's watchdog: it is notified while every thread that packets need
//! completes its loop, and ends this process if it is not.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use daemon::notify::Notifier;

use crate::observe::health::Health;

/// A thread that packets need and that has not gone round for this long is not
/// alive; the service manager then ends us, so that the routes go.
const HEARTBEAT_AGE_MAX: Duration = Duration::from_secs(2);

/// Notifies the service manager each `interval`, on a thread of its own.
pub fn watch(
    notifier: Notifier,
    interval: Duration,
    health: Arc<Health>,
) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("watchdog".into());
    thread.spawn(move || {
        loop {
            match health.liveness.oldest() {
                Some(oldest) if oldest.age > HEARTBEAT_AGE_MAX => {
                    tracing::error!(
                        thread = %oldest.role,
                        age = ?oldest.age,
                        "a thread that packets need does not go round its loop"
                    );
                }
                _ => notifier.alive(),
            }
            std::thread::sleep(interval);
        }
    })
}
