//! The metrics page, shared by all who request it within a second: one thread, which may wait,
//! makes it once, whatever the number of clients.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// Requests within this time are answered by the same page.
const AGE: Duration = Duration::from_secs(1);

/// Pages that slow clients still read stay in memory. With more than this in
/// it, the latest page is served until one of them is done, which is within
/// the time that a client has.
const BYTES_MAX: usize = 64 << 20;

/// Makes the page.
type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// See the module.
#[derive(Clone)]
pub struct SharedPage {
    render: Render,
    age: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    latest: Option<(Instant, Arc<String>)>,
    /// Every page that is in memory.
    alive: Vec<Weak<String>>,
}

impl SharedPage {
    /// Made by `render`.
    pub fn new(render: impl Fn() -> String + Send + Sync + 'static) -> SharedPage {
        SharedPage { render: Arc::new(render), age: AGE, state: Arc::default() }
    }

    /// The same of a page that costs little: each request gets one that was begun after it.
    pub fn cheap(render: impl Fn() -> String + Send + Sync + 'static) -> SharedPage {
        SharedPage { age: Duration::ZERO, ..SharedPage::new(render) }
    }

    /// The page of the latest second. While it is made, others wait for it.
    pub async fn get(&self) -> Arc<String> {
        self.not_older(self.age).await
    }

    /// A page that was begun after this call. Callers that wait at the same
    /// time share it, so that it costs at most one thread.
    pub async fn fresh(&self) -> Arc<String> {
        self.not_older(Duration::ZERO).await
    }

    async fn not_older(&self, age: Duration) -> Arc<String> {
        let requested = Instant::now();
        let mut state = self.state.lock().await;
        if let Some((begun, page)) = &state.latest
            && *begun + age > requested
        {
            return Arc::clone(page);
        }
        state.alive.retain(|page| page.strong_count() > 0);
        let bytes: usize =
            state.alive.iter().filter_map(Weak::upgrade).map(|page| page.len()).sum();
        if let Some((_, page)) = &state.latest
            && bytes > BYTES_MAX
        {
            return Arc::clone(page);
        }
        let begun = Instant::now();
        let render = Arc::clone(&self.render);
        let made = tokio::task::spawn_blocking(move || render()).await;
        // Only the end of the process cancels it.
        let page = Arc::new(made.unwrap_or_default());
        state.alive.push(Arc::downgrade(&page));
        state.latest = Some((begun, Arc::clone(&page)));
        page
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn counted(bytes: usize) -> (SharedPage, Arc<AtomicUsize>) {
        let times = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&times);
        let render = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            "x".repeat(bytes)
        };
        (SharedPage::new(render), times)
    }

    #[tokio::test]
    async fn all_who_ask_within_a_second_share_one_page() {
        let (page, times) = counted(3);
        let clients: Vec<_> = (0..200)
            .map(|_| {
                tokio::spawn({
                    let page = page.clone();
                    async move { page.get().await }
                })
            })
            .collect();
        for client in clients {
            assert_eq!(*client.await.unwrap(), "xxx");
        }
        assert_eq!(times.load(Ordering::Relaxed), 1);
        tokio::time::sleep(AGE).await;
        page.get().await;
        assert_eq!(times.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_fresh_page_is_begun_after_its_request() {
        let (page, times) = counted(3);
        page.get().await;
        page.fresh().await;
        assert_eq!(times.load(Ordering::Relaxed), 2);
        page.get().await;
        assert_eq!(times.load(Ordering::Relaxed), 2, "a fresh page is as good as any");
    }

    #[tokio::test]
    async fn pages_that_slow_clients_still_read_are_bounded() {
        let (page, times) = counted(BYTES_MAX / 2 + 1);
        let mut reading = Vec::new();
        for _ in 0..4 {
            reading.push(page.get().await);
            page.state.lock().await.latest.as_mut().unwrap().0 -= AGE;
        }
        assert_eq!(times.load(Ordering::Relaxed), 2);
        drop(reading);
        page.get().await;
        assert_eq!(times.load(Ordering::Relaxed), 3);
    }
}
