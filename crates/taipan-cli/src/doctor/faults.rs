//! What goes wrong on a device is reported, and the program goes on.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use taipan::gpu::{Capabilities, Gpu};
use taipan::wgpu::Adapter;
use taipan::{DType, Device, Error, Result, Tensor, embedding};
use taipan_doctor::Check;

use super::screen::Screen;

/// How long a device may take: a driver that waits for ever is a fault too.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What was reported, or what is wrong.
type Reported = std::result::Result<String, String>;

/// Faults that the program makes, each on a device of its own.
pub fn checks(device: &Device, adapter: Option<&Adapter>, screen: &mut Screen) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |name, fault: fn(&Device) -> Reported| {
        screen.note(name);
        let place = place(device, adapter).map_err(|error| error.to_string());
        let reported = place.and_then(|place| in_time(move || fault(&place)));
        let passed = reported.is_ok();
        let found = reported.unwrap_or_else(|wrong| wrong);
        checks.push(Check { name, passed, found });
    };
    check("bad index", bad_index);
    check("out of memory", out_of_memory);
    if adapter.is_some() {
        check("lost device", lost);
    }
    checks
}

fn place(device: &Device, adapter: Option<&Adapter>) -> Result<Device> {
    match adapter {
        Some(adapter) => super::open(adapter, Capabilities::Full).map(Device::Gpu),
        None => Ok(device.clone()),
    }
}

/// What `f` returns, if that does not take for ever.
fn in_time(f: impl FnOnce() -> Reported + Send + 'static) -> Reported {
    let (send, receive) = channel();
    thread::spawn(move || send.send(f()));
    receive.recv_timeout(TIMEOUT).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => format!("no answer in {} s", TIMEOUT.as_secs()),
            RecvTimeoutError::Disconnected => "panicked".into(),
        })
    })
}

/// The error that was expected, on a device that computes on.
fn expect<T>(
    result: Result<T>,
    expected: impl FnOnce(&Error) -> bool,
    device: &Device,
) -> Reported {
    match result {
        Ok(_) => Err("no error".into()),
        Err(error) if !expected(&error) => Err(format!("another error: {error}")),
        Err(error) => computes(device).map(|()| error.to_string()),
    }
}

/// An error unless the device computes.
fn computes(device: &Device) -> std::result::Result<(), String> {
    let read = || Tensor::full(&[3], 1.5, DType::F32, device)?.scale(2.0)?.read_blocking::<f32>();
    match read() {
        Ok(found) if found == [3.0; 3] => Ok(()),
        Ok(found) => Err(format!("afterwards 2 · 1.5 is {found:?}")),
        Err(error) => Err(format!("afterwards: {error}")),
    }
}

/// An id that is not in a table.
fn bad_index(device: &Device) -> Reported {
    let look_up = || {
        let table = Tensor::ones(&[50, 4], DType::F32, device)?;
        embedding(&table, &Tensor::new(&[3u32, 50], &[2], device)?)?.read_blocking::<f32>()
    };
    expect(look_up(), |error| matches!(error, Error::Index { found: 50, .. }), device)
}

/// More memory than any machine has. Filling what there is would disturb other programs.
fn out_of_memory(device: &Device) -> Reported {
    let request = Tensor::zeros(&[1 << (usize::BITS - 18)], DType::F32, device);
    expect(request, |_| true, device)
}

/// A device that is destroyed in the middle of its work.
fn lost(device: &Device) -> Reported {
    let Device::Gpu(gpu) = device else { return Err("not a GPU".into()) };
    let lose = || {
        let y = Tensor::ones(&[1000], DType::F32, device)?.exp()?;
        gpu.device().destroy();
        y.read_blocking::<f32>()
    };
    let lost = lose();
    let again = reopened(gpu).map_err(|error| format!("afterwards: {error}"))?;
    expect(lost, |error| matches!(error, Error::Device { .. }), &Device::Gpu(again))
}

/// The same adapter, opened anew.
fn reopened(gpu: &Gpu) -> std::result::Result<Gpu, String> {
    let adapters = pollster::block_on(taipan::gpu::adapters());
    let adapter = adapters.iter().find(|adapter| adapter.get_info() == *gpu.info());
    let adapter = adapter.ok_or("the adapter is gone")?;
    super::open(adapter, Capabilities::Full).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_reported_is_found() {
        let cpu = &Device::Cpu;
        assert_eq!(expect(Ok(()), |_| true, cpu), Err("no error".into()));
        let error = || Error::Shape { op: "zeros", why: "too large".into() };
        let another = expect(Err::<(), _>(error()), |e| matches!(e, Error::Index { .. }), cpu);
        assert_eq!(another, Err("another error: zeros: too large".into()));
        assert_eq!(expect(Err::<(), _>(error()), |_| true, cpu), Ok("zeros: too large".into()));
        assert_eq!(in_time(|| panic!("on purpose")), Err("panicked".into()));
    }
}
