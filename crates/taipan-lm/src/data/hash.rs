//! FNV-1a with 128 bits: tells data apart, against accidents and not against attacks.

#[derive(Clone, Copy)]
pub(super) struct Fnv(u128);

impl Fnv {
    pub fn new() -> Fnv {
        Fnv(0x6c62272e07bb0142_62b821756295c58d)
    }

    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000000001000000_000000000000013b);
        }
    }

    pub fn value(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values_of_fnv_1a() {
        let hash = |text: &str| {
            let mut fnv = Fnv::new();
            fnv.write(text.as_bytes());
            format!("{:032x}", fnv.value())
        };
        assert_eq!(hash(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hash("a"), "d228cb696f1a8caf78912b704e4a8964");
        assert_eq!(hash("foobar"), "343e1662793c64bf6f0d3597ba446f18");
    }
}
