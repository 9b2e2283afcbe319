//! taipan and other passes of a program on the same device.

use std::sync::Arc;

use taipan::gpu::Gpu;
use taipan::wgpu::{self, BufferUsages};
use taipan::{Activation, DType, Device, Error, Result, Tensor, linear};

use crate::{adapter, fresh, read, shared, without_hanging};

/// A device of the program's own.
fn own() -> Option<(wgpu::Device, wgpu::Queue)> {
    let adapter = adapter(&shared()?);
    Some(pollster::block_on(adapter.request_device(&Default::default())).unwrap())
}

fn buffer(device: &wgpu::Device, size: u64, usage: BufferUsages) -> wgpu::Buffer {
    let label = Some("the program's");
    device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
}

const USAGE: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Copy what is in a buffer as the program would, without taipan.
fn copy_out(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    from: &wgpu::Buffer,
    len: usize,
) -> Vec<f32> {
    let size = 4 * len as u64;
    let staging = buffer(device, size, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let mut encoder = device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(from, 0, &staging, 0, size);
    queue.submit([encoder.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let view = staging.get_mapped_range(..).unwrap();
    view.chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn taipan_runs_on_the_programs_device() -> Result<()> {
    let Some((device, queue)) = own() else { return Ok(()) };
    let gpu = Gpu::on(&device, &queue)?;
    assert_eq!(gpu.device(), &device);
    assert_eq!(gpu.limits(), &device.limits());
    assert!(!Device::Gpu(gpu.clone()).supports(DType::F16), "the device was made without");
    let run = |on: &Device| -> Result<Vec<f32>> {
        let x = Tensor::arange(-3, 3, DType::F32, on)?.reshape(&[2, 3])?.tracked();
        let w = Tensor::arange(0, 12, DType::F32, on)?.reshape(&[3, 4])?.tracked();
        let grads = linear(&x, &w, None, Activation::Relu)?.sum()?.backward()?;
        Ok([read(grads.of(&x)?), read(grads.of(&w)?)].concat())
    };
    assert_eq!(run(&Device::Gpu(gpu))?, run(&Device::Cpu)?);
    // The program's own work goes on beside it.
    let mine = buffer(&device, 8, USAGE);
    queue.write_buffer(&mine, 0, &bytes(&[1.0, 2.0]));
    assert_eq!(copy_out(&device, &queue, &mine, 2), [1.0, 2.0]);
    Ok(())
}

#[test]
fn a_wrapped_buffer_is_not_copied() -> Result<()> {
    let Some((device, queue)) = own() else { return Ok(()) };
    let gpu = Gpu::on(&device, &queue)?;
    let mine = buffer(&device, 32, USAGE); // longer than the tensor
    let before = (gpu.memory(), gpu.work());
    let x = Tensor::from_wgpu(&gpu, &mine, &[2, 3], DType::F32)?.tracked();
    assert_eq!((gpu.memory(), gpu.work()), before, "nothing is allocated nor launched");
    for values in [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [-1.0, 0.5, 8.0, 0.0, 1.5, 2.5]] {
        queue.write_buffer(&mine, 0, &bytes(&values));
        assert_eq!(read(&x), values);
        let y = x.mul(&x)?;
        let dy = Tensor::new(&[1f32, 10.0, 100.0], &[3], x.device())?.broadcast_to(&[2, 3])?;
        let grads = y.backward_from(&dy)?;
        assert_eq!(read(&y), values.map(|x| x * x));
        let want: Vec<f32> =
            values.iter().zip([1.0, 10.0, 100.0].repeat(2)).map(|(x, dy)| 2.0 * x * dy).collect();
        assert_eq!(read(grads.of(&x)?), want);
        assert_eq!(x.wgpu_buffer()?, &mine);
    }
    drop(x);
    assert_eq!(gpu.memory().used, 0);
    // The program still owns it: it does not go to the pool.
    let zeros = Tensor::zeros(&[8], DType::F32, &Device::Gpu(gpu))?;
    assert_ne!(zeros.wgpu_buffer()?, &mine);
    assert_eq!(copy_out(&device, &queue, &mine, 2), [-1.0, 0.5]);
    Ok(())
}

#[test]
fn a_buffer_that_does_not_fit_is_refused() {
    let Some(gpu) = shared() else { return };
    let wrap = |size, usage, shape: &[usize], dtype| {
        Tensor::from_wgpu(&gpu, &buffer(gpu.device(), size, usage), shape, dtype)
    };
    let refuses = |size, usage, message: &str| match wrap(size, usage, &[3], DType::F32) {
        Ok(_) => panic!("accepted, expected: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    };
    refuses(8, USAGE, "from_wgpu: the buffer has 8 bytes, expected 12 or more");
    for usage in [
        BufferUsages::STORAGE | BufferUsages::COPY_DST,
        BufferUsages::COPY_SRC | BufferUsages::UNIFORM,
    ] {
        let wanted = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
        refuses(
            12,
            usage,
            &format!("from_wgpu: the buffer's usage is {usage:?}, expected {wanted:?}"),
        );
    }
    assert!(matches!(wrap(16, USAGE, &[1], DType::F64), Err(Error::DType { op: "from_wgpu", .. })));
    assert!(wrap(12, USAGE, &[3], DType::F32).is_ok());
}

#[test]
fn the_program_reads_the_buffer_of_a_result() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let x = Tensor::arange(0, 100, DType::F32, &Device::Gpu(gpu.clone()))?.scale(3.0)?;
    // What computes it was not submitted before.
    let got = copy_out(gpu.device(), gpu.queue(), x.wgpu_buffer()?, 100);
    assert_eq!(got, (0..100).map(|i| 3.0 * i as f32).collect::<Vec<_>>());
    let error = Tensor::zeros(&[1], DType::F32, &Device::Cpu)?.wgpu_buffer().unwrap_err();
    assert_eq!(error.to_string(), "wgpu_buffer: the tensor is on cpu, expected a GPU");
    Ok(())
}

/// A buffer of another device: an error, and no harm to what was launched before it, whose memory
/// would otherwise be read as another tensor left it.
#[test]
fn a_buffer_of_another_device_is_an_error() -> Result<()> {
    let (Some((device, _)), Some(gpu)) = (own(), fresh()) else { return Ok(()) };
    let x = Tensor::arange(0, 4, DType::F32, &Device::Gpu(gpu.clone()))?;
    let before = x.scale(2.0)?;
    let foreign = buffer(&device, 16, USAGE);
    let wrapped = Tensor::from_wgpu(&gpu, &foreign, &[4], DType::F32);
    let used = wrapped.and_then(|x| x.exp()?.read_blocking::<f32>());
    assert!(matches!(used, Err(Error::Device { .. })), "{used:?}");
    assert_eq!(before.read_blocking::<f32>(), Ok(vec![0.0, 2.0, 4.0, 6.0]));
    assert_eq!(x.scale(3.0)?.read_blocking::<f32>(), Ok(vec![0.0, 3.0, 6.0, 9.0]));
    Ok(())
}

/// The program hears of the loss, not taipan, which neither waits for ever nor gives values.
#[test]
fn losing_the_programs_device_is_an_error() {
    let Some((device, queue)) = own() else { return };
    without_hanging(move || {
        device.on_uncaptured_error(Arc::new(|_| ()));
        let gpu = Gpu::on(&device, &queue).unwrap();
        let on = Device::Gpu(gpu.clone());
        let x = Tensor::ones(&[4], DType::F32, &on).unwrap();
        assert_eq!(read(&x), [1.0; 4]);
        device.destroy();
        assert!(x.read_blocking::<f32>().is_err(), "read");
        assert!(x.exp().and_then(|y| y.read_blocking::<f32>()).is_err(), "an op");
        let made = Tensor::new(&[1f32], &[1], &on);
        assert!(made.and_then(|x| x.read_blocking::<f32>()).is_err(), "new");
    });
}

/// A device that was made with too little for the kernels: an error that names what is missing.
#[test]
fn a_device_with_too_little_is_refused() {
    let Some(gpu) = shared() else { return };
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: wgpu::Limits {
            max_storage_buffers_per_shader_stage: 4,
            ..wgpu::Limits::default()
        },
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter(&gpu).request_device(&descriptor)).unwrap();
    let error = Gpu::on(&device, &queue).unwrap_err().to_string();
    let expected =
        "gpu: max_storage_buffers_per_shader_stage of the device is 4, expected at least 8";
    assert_eq!(error, expected);
}

/// With wgpu's own handler, which panics, taipan's calls on a lost device are errors still.
#[test]
fn no_handler_is_needed() {
    let Some((device, queue)) = own() else { return };
    let gpu = Gpu::on(&device, &queue).unwrap();
    let x = Tensor::ones(&[4], DType::F32, &Device::Gpu(gpu)).unwrap();
    device.destroy();
    assert!(x.exp().and_then(|y| y.read_blocking::<f32>()).is_err());
}
