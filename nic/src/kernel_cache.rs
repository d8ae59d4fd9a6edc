//! The memory of the kernel flow cache: maps of an interface's filter that this process maps,
//! too. The meaning of their words is defined by their writer and by bpf/cache.h.
//!
//! The mappings stay for the life of the process. The program ends with the process, and so
//! does what it forwards by.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Array, DevMap, HashMap, Map, MapData, MapError};
use aya::{Ebpf, EbpfLoader};
use ebpf::ObjectError;

use crate::filter::Filter;
use crate::interface::Interface;

/// Words of a cache line: of a bucket of entries, of what stands beside a region.
pub const LINE_WORDS: usize = 8;
/// Words of a target.
pub const TARGET_WORDS: usize = 2 * LINE_WORDS;
/// Words that a target's traffic has on one processor: packets, bytes.
pub const TRAFFIC_WORDS: usize = 2;
/// Words of what flows and clients are hashed by.
pub const HASH_WORDS: usize = (4 * 256 + 2 * 44) / 2;

const WORD_BYTES: usize = size_of::<u64>();

/// How large the cache is; buckets and targets are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Regions: RX queues, each with its worker.
    pub queues: u32,
    /// Buckets of each region: four entries in 64 bytes.
    pub buckets: u32,
    /// Targets of all.
    pub targets: u32,
    /// Buckets of all stateless services: a word each.
    pub service_buckets: u32,
}

/// A stateless service as the filter finds it: by where packets are to. Both as
/// bpf/cache_services.h has them.
pub type ServiceEntry = ([u8; 20], [u32; 4]);

/// A cache in front of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRequest {
    /// Buckets of each queue's region, a power of two.
    pub buckets: u32,
    /// Targets, a power of two.
    pub targets: u32,
    /// Buckets of all stateless services.
    pub service_buckets: u32,
    /// The key of the hash: another at each start.
    pub key: [u64; 2],
    /// The kernel's numbers of the interfaces that it may send by, at most
    /// [`DEVICES_MAX`], in the order that targets name them.
    pub devices: Vec<u32>,
}

/// Devices that a cache sends by.
pub const DEVICES_MAX: usize = 64;

/// The same for a number of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// How large it is.
    pub size: CacheSize,
    /// As in the request.
    pub key: [u64; 2],
    /// As in the request.
    pub devices: Vec<u32>,
}

/// The processors that the kernel counts with, also those that are not there yet.
#[must_use]
pub fn possible_processors() -> usize {
    aya::util::nr_cpus().unwrap_or(1)
}

impl CacheRequest {
    /// Bytes that its maps take in front of an interface with that many queues.
    #[must_use]
    pub fn bytes(&self, queues: u32) -> u64 {
        let processors = possible_processors();
        let target = TARGET_WORDS + processors * TRAFFIC_WORDS;
        let words = u64::from(queues) * u64::from(self.buckets) * LINE_WORDS as u64
            + u64::from(self.targets) * target as u64
            + u64::from(self.service_buckets);
        words * WORD_BYTES as u64
    }

    /// The same for that many queues.
    pub(crate) fn of(self, queues: u32) -> CacheConfig {
        let CacheRequest { buckets, targets, service_buckets, key, devices } = self;
        CacheConfig { size: CacheSize { queues, buckets, targets, service_buckets }, key, devices }
    }
}

/// The cache's memory, shared with the kernel.
#[derive(Clone, Copy, Debug)]
pub struct CacheMemory {
    /// How large it is.
    pub size: CacheSize,
    /// The key of the hash that entries are found by.
    pub key: [u64; 2],
    entries: &'static [AtomicU64],
    lines: &'static [AtomicU64],
    targets: &'static [AtomicU64],
    traffic: &'static [AtomicU64],
    service_buckets: &'static [AtomicU64],
    hash: &'static [AtomicU64],
    services: &'static Mutex<Services>,
}

/// Which stateless services the filter knows, and the map that says so.
#[derive(Debug)]
struct Services {
    map: HashMap<MapData, [u8; 20], [u32; 4]>,
    known: BTreeMap<[u8; 20], [u32; 4]>,
}

impl Services {
    fn set(&mut self, wanted: impl IntoIterator<Item = ServiceEntry>) -> Result<(), MapError> {
        let wanted: BTreeMap<_, _> = wanted.into_iter().collect();
        for socket in self.known.clone().into_keys().filter(|socket| !wanted.contains_key(socket)) {
            self.map.remove(&socket)?;
            self.known.remove(&socket);
        }
        for (socket, service) in wanted {
            if self.known.get(&socket) != Some(&service) {
                self.map.insert(socket, service, 0)?;
                self.known.insert(socket, service);
            }
        }
        Ok(())
    }
}

impl CacheMemory {
    /// The words of a queue's region.
    #[must_use]
    pub fn region(&self, queue: u32) -> &'static [AtomicU64] {
        let words = self.size.buckets as usize * LINE_WORDS;
        &self.entries[queue as usize * words..][..words]
    }

    /// The line beside a queue's region.
    #[must_use]
    pub fn line(&self, queue: u32) -> &'static [AtomicU64; LINE_WORDS] {
        &self.lines.as_chunks().0[queue as usize]
    }

    /// The words of the targets.
    #[must_use]
    pub fn targets(&self) -> &'static [AtomicU64] {
        &self.targets[..self.size.targets as usize * TARGET_WORDS]
    }

    /// The words of stateless services' buckets.
    #[must_use]
    pub fn service_buckets(&self) -> &'static [AtomicU64] {
        &self.service_buckets[..self.size.service_buckets as usize]
    }

    /// The words of what flows and clients are hashed by.
    #[must_use]
    pub fn hash(&self) -> &'static [AtomicU64] {
        self.hash
    }

    /// From now on the filter finds these stateless services, and no others.
    ///
    /// # Errors
    /// What the kernel refuses; the services it knows then are among these, and right.
    ///
    /// # Panics
    /// If it panicked before.
    pub fn set_services(
        &self,
        services: impl IntoIterator<Item = ServiceEntry>,
    ) -> Result<(), String> {
        let mut known = self.services.lock().expect("a panic aborts the process");
        known.set(services).map_err(|error| ebpf::with_causes(&error))
    }

    /// Packets that the kernel has handed to the device, by all targets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let (all, _) = self.traffic.as_chunks::<TRAFFIC_WORDS>();
        all.iter().map(|[packets, _]| packets.load(Ordering::Relaxed)).sum()
    }

    /// What the kernel has handed to the device by a target: on each processor.
    pub fn traffic(
        &self,
        target: usize,
    ) -> impl Iterator<Item = &'static [AtomicU64; TRAFFIC_WORDS]> {
        let (all, _) = self.traffic.as_chunks();
        all.iter().skip(target).step_by(self.size.targets as usize)
    }

    /// The same on all of them: packets, bytes.
    #[must_use]
    pub fn traffic_of(&self, target: usize) -> [u64; TRAFFIC_WORDS] {
        self.traffic(target).fold([0; TRAFFIC_WORDS], |sum, words| {
            [0, 1].map(|word| sum[word] + words[word].load(Ordering::Relaxed))
        })
    }
}

/// A filter in the kernel, with a kernel flow cache or without, on no interface yet.
pub(crate) type Loaded = (Ebpf, Filter, Option<CacheMemory>);

/// Loads a filter by `load`, with a kernel flow cache if the kernel has what that takes;
/// where it has not, a warning says what, and user space sends all packets.
pub(crate) fn load_for(
    interface: &Interface,
    cache: Option<CacheConfig>,
    load: impl Fn(Option<CacheConfig>) -> Result<Loaded, ObjectError>,
) -> Result<Loaded, ObjectError> {
    let mut loaded = match cache {
        None => load(None)?,
        Some(_) => load(cache).or_else(|error| {
            let interface = &interface.name;
            tracing::warn!(interface, %error, "no kernel flow cache: user space sends all packets");
            load(None)
        })?,
    };
    let (_, filter, _) = &mut loaded;
    filter.set_address(interface.mac).map_err(|error| ObjectError::Load(error.to_string()))?;
    Ok(loaded)
}

/// Loads an object's maps, with a kernel flow cache of that config, or without one, and
/// with these constants. Its programs are still to be loaded.
pub(crate) fn load_maps(
    object: &'static [u8],
    cache: Option<CacheConfig>,
    constants: &[(&'static str, u32)],
) -> Result<Loaded, ObjectError> {
    let failed = |error: io::Error| ObjectError::Load(error.to_string());
    let settings = cache.map(Settings::new).transpose().map_err(failed)?;
    let mut object = ebpf::load_with(object, |loader| {
        if let Some(settings) = &settings {
            settings.apply(loader);
        }
        for (name, value) in constants {
            loader.override_global(name, value, true);
        }
    })?;
    let filter = Filter::take(&mut object)?;
    let memory = settings.as_ref().map(|settings| settings.memory(&mut object)).transpose()?;
    settings.as_ref().map(|settings| settings.connect(&mut object)).transpose()?;
    Ok((object, filter, memory))
}

/// What the filter is loaded with: a cache of that size.
pub(crate) struct Settings {
    size: CacheSize,
    key: [u64; 2],
    bucket_mask: u32,
    target_mask: u32,
    processors: u32,
    devices: Vec<u32>,
}

impl Settings {
    /// # Panics
    /// If numbers are not powers of two.
    pub(crate) fn new(config: CacheConfig) -> io::Result<Settings> {
        let CacheConfig { size, key, devices } = config;
        assert!(size.buckets.is_power_of_two() && size.targets.is_power_of_two(), "{size:?}");
        let processors = aya::util::nr_cpus().map_err(|(_, error)| error)? as u32;
        Ok(Settings {
            size,
            key,
            bucket_mask: size.buckets - 1,
            target_mask: size.targets - 1,
            processors,
            devices,
        })
    }

    /// Sizes the maps, and says so to the program.
    pub(crate) fn apply<'s>(&'s self, loader: &mut EbpfLoader<'s>) {
        let Settings { size, key, bucket_mask, target_mask, processors, .. } = self;
        loader
            .override_global("cache_queues", &size.queues, true)
            .override_global("cache_bucket_mask", bucket_mask, true)
            .override_global("cache_target_mask", target_mask, true)
            .override_global("cache_key_0", &key[0], true)
            .override_global("cache_key_1", &key[1], true)
            .map_max_entries("cache_entries", size.queues * size.buckets)
            .map_max_entries("cache_lines", size.queues)
            .map_max_entries("cache_targets", size.targets)
            .map_max_entries("service_buckets", size.service_buckets)
            .map_max_entries("cache_traffic", processors * size.targets);
    }

    /// Names the devices that the program may send by; the map goes with it.
    pub(crate) fn connect(&self, object: &mut Ebpf) -> Result<(), ObjectError> {
        let name = "cache_devices";
        let map = object.map_mut(name).ok_or(ObjectError::Missing(name))?;
        for (number, device) in (0..).zip(&self.devices) {
            let set = match &mut *map {
                Map::DevMap(_) => DevMap::<&mut MapData>::try_from(&mut *map).map(|mut map| {
                    map.set(number, *device, None, 0).map_err(|error| error.to_string())
                }),
                _ => Array::<&mut MapData, u32>::try_from(&mut *map)
                    .map(|mut map| map.set(number, *device, 0).map_err(|error| error.to_string())),
            };
            let set = set.map_err(|_| ObjectError::Missing(name))?;
            set.map_err(|error| ObjectError::Table { name, error })?;
        }
        Ok(())
    }

    /// Maps the tables of an object that was loaded with these.
    pub(crate) fn memory(&self, object: &mut Ebpf) -> Result<CacheMemory, ObjectError> {
        let Settings { size, key, processors, .. } = self;
        let (size, key, processors) = (*size, *key, *processors);
        let line_bytes = LINE_WORDS * WORD_BYTES;
        let services = ebpf::table(object, "service_sockets")?;
        let services = Services { map: services, known: BTreeMap::new() };
        let map = |name, entries: u32, entry_bytes| {
            let bytes = entries as usize * entry_bytes;
            let mapped = map_words(table(object, name)?, bytes);
            mapped.map_err(|error| ObjectError::Table { name, error: error.to_string() })
        };
        Ok(CacheMemory {
            size,
            key,
            entries: map("cache_entries", size.queues * size.buckets, line_bytes)?,
            lines: map("cache_lines", size.queues, line_bytes)?,
            targets: map("cache_targets", size.targets, TARGET_WORDS * WORD_BYTES)?,
            traffic: map("cache_traffic", processors * size.targets, TRAFFIC_WORDS * WORD_BYTES)?,
            service_buckets: map("service_buckets", size.service_buckets, WORD_BYTES)?,
            hash: map("hash_tables", 1, HASH_WORDS * WORD_BYTES)?,
            services: Box::leak(Box::new(Mutex::new(services))),
        })
    }
}

fn table<'o>(object: &'o Ebpf, name: &'static str) -> Result<BorrowedFd<'o>, ObjectError> {
    match object.map(name) {
        Some(Map::Array(data)) => Ok(data.fd().as_fd()),
        _ => Err(ObjectError::Missing(name)),
    }
}

/// Maps the first `bytes` of an array map's values, which must have as many.
fn map_words(map: BorrowedFd<'_>, bytes: usize) -> io::Result<&'static [AtomicU64]> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory
    // that exists.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: needed to see the mapping as words. It is page-aligned, `bytes` long, a
    // multiple of a word, readable and writable, and never unmapped; the kernel keeps
    // the map's memory as long as it is mapped. Any content is a valid AtomicU64, and
    // that the kernel writes there, too, is what atomics are for.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), bytes / WORD_BYTES) })
}
