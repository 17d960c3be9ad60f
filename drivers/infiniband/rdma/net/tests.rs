// SPDX-License-Identifier: GPL-2.0

//! Packets as they are built, sent and received, over the loopback device of the initial namespace.

#[kernel::prelude::kunit_tests(rdma_net)]
mod packets {
    use crate::{
        net::{
            testing::init_net,
            Flow,
            FlowKey,
            IpHeader,
            MulticastAddr,
            NetDevice,
            Rtnl,
            RxPacket,
            TxError,
            TxQueue,
            UdpPort,
            UdpReceive, //
        },
        new_spinlock_bh,
        sync::SpinLockBh, //
    };
    use kernel::{
        prelude::*,
        sync::{
            aref::ARef,
            Arc, //
        },
        time::{
            delay::fsleep,
            Delta, //
        },
    };

    /// No well-known one.
    const PORT: u16 = 40791;

    fn loopback() -> ARef<NetDevice> {
        let net = init_net();
        // SAFETY: The initial namespace and its loopback device are never freed.
        let lo = unsafe { (*net).loopback_dev };
        // SAFETY: As above.
        unsafe { NetDevice::from_raw(lo.cast()) }.into()
    }

    const V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    const V6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn key(v4: bool) -> FlowKey {
        let address = if v4 { V4 } else { V6 };
        FlowKey {
            v4,
            saddr: address,
            daddr: address,
            sport: 0xc123,
            dport: PORT,
            tclass: 0x68,
            hop_limit: 33,
            flow_label: 0x12345,
            oif: 0,
        }
    }

    fn port_bytes() -> [u8; 4] {
        let [a, b] = PORT.to_be_bytes();
        [0xc1, 0x23, a, b]
    }

    #[test]
    fn ipv4_headers() -> Result {
        let mut flow = Flow::new(&loopback(), key(true))?;
        let mut packet = flow.build(100).map_err(|_| EIO)?;
        assert_eq!(packet.payload_mut().len(), 100);
        let ip = packet.ip();
        assert!(ip.is_v4());
        // Version, TOS, length 128, id 0, "don't fragment", TTL, UDP, no checksum yet, addresses.
        let want = [
            0x45, 0x68, 0, 128, 0, 0, 0x40, 0, 33, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1,
        ];
        assert_eq!(ip.bytes(), &want[..]);
        let udp = *packet.udp();
        assert_eq!(udp[..4], port_bytes());
        // Length 108, no checksum.
        assert_eq!(udp[4..], [0, 108, 0, 0]);
        Ok(())
    }

    #[test]
    fn ipv6_headers() -> Result {
        let mut flow = Flow::new(&loopback(), key(false))?;
        let mut packet = flow.build(100).map_err(|_| EIO)?;
        assert_eq!(packet.payload_mut().len(), 100);
        let ip = packet.ip();
        assert!(!ip.is_v4());
        let bytes = ip.bytes();
        // Version, traffic class, flow label; length 108; UDP; hop limit.
        assert_eq!(bytes[..8], [0x66, 0x81, 0x23, 0x45, 0, 108, 17, 33]);
        assert_eq!(bytes[8..24], V6);
        assert_eq!(bytes[24..], V6);
        assert_eq!(packet.udp()[..4], port_bytes());
        assert_eq!(packet.udp()[4..], [0, 108, 0, 0]);
        Ok(())
    }

    #[test]
    fn as_long_as_the_route_takes() -> Result {
        for v4 in [true, false] {
            let mut flow = Flow::new(&loopback(), key(v4))?;
            let most = flow.max_payload().map_err(|_| EIO)?;
            let headers = if v4 { 28 } else { 48 };
            let mtu = (loopback().mtu() as usize).min(usize::from(u16::MAX));
            assert_eq!(most, mtu - headers);
            for len in [0, 1, 1500, most] {
                let mut packet = flow.build(len).map_err(|_| EIO)?;
                assert_eq!(packet.payload_mut().len(), len);
            }
            for len in [most + 1, 65536, usize::MAX] {
                assert!(flow.build(len).err() == Some(TxError::TOO_LONG));
            }
        }
        Ok(())
    }

    #[test]
    fn nowhere_to_go() -> Result {
        // TEST-NET-3 and the documentation prefix, which no route leads to here.
        let mut v4 = key(true);
        v4.daddr[12..].copy_from_slice(&[203, 0, 113, 1]);
        let mut v6 = key(false);
        v6.daddr = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for key in [v4, v6] {
            let mut flow = Flow::new(&loopback(), key)?;
            assert!(flow.build(10).err() == Some(TxError::NoRoute));
            assert!(flow.max_payload().err() == Some(TxError::NoRoute));
        }
        Ok(())
    }

    #[test]
    fn a_queue_frees_what_was_not_sent() -> Result {
        let mut flow = Flow::new(&loopback(), key(true))?;
        let mut queue = TxQueue::new();
        assert!(queue.is_empty());
        for count in 1..=5 {
            queue.push(flow.build(64).map_err(|_| EIO)?);
            assert_eq!(queue.len(), count);
        }
        queue.clear();
        assert!(queue.is_empty());
        queue.push(flow.build(64).map_err(|_| EIO)?);
        // The flow goes first; packets have their own reference on the route.
        drop(flow);
        drop(queue);
        Ok(())
    }

    /// What came in, in order: first byte, length, sum of the bytes.
    #[pin_data]
    struct Receiver {
        #[pin]
        got: SpinLockBh<KVec<(u8, usize, u64)>>,
    }

    impl Receiver {
        fn new() -> Result<Arc<Self>> {
            let got = KVec::with_capacity(64, GFP_KERNEL)?;
            let this = Arc::pin_init(
                pin_init!(Self { got <- new_spinlock_bh!(got, "rdma_net") }),
                GFP_KERNEL,
            )?;
            Ok(this.into())
        }

        fn count(&self) -> usize {
            self.got.lock().len()
        }
    }

    impl UdpReceive for Receiver {
        fn receive(&self, packet: RxPacket) {
            let ip_ok = match packet.ip() {
                IpHeader::V4(ip) => {
                    ip[12..] == [127, 0, 0, 1, 127, 0, 0, 1] && ip[1] == 0x68 && ip[8] == 33
                }
                IpHeader::V6(ip) => ip[8..24] == V6 && ip[24..] == V6 && ip[7] == 33,
            };
            let ok = ip_ok
                && packet.udp()[..4] == port_bytes()
                && packet.on_loopback()
                && !packet.has_options()
                && packet.vlan_id().is_none()
                && packet.src_mac().is_none()
                && packet.ifindex() == loopback().ifindex();
            let payload = packet.payloads().next().unwrap_or_default();
            // A copy has the same, and no more.
            let ok = ok
                && packet.first(1).is_some_and(|copy| {
                    let mut payloads = copy.payloads();
                    let same = payloads.next() == Some(payload) && payloads.next().is_none();
                    same && copy.ip().bytes() == packet.ip().bytes()
                });
            if let (true, Some(first)) = (ok, payload.first()) {
                let sum = payload.iter().map(|byte| u64::from(*byte)).sum();
                let _ = self
                    .got
                    .lock()
                    .push((*first, payload.len(), sum), GFP_ATOMIC);
            }
        }
    }

    #[test]
    fn what_is_sent_arrives() -> Result {
        for v4 in [true, false] {
            let receiver = Receiver::new()?;
            let port = UdpPort::new(&loopback(), PORT, receiver.clone())?;
            let mut flow = Flow::new(&loopback(), key(v4))?;
            let mut queue = TxQueue::new();
            let lengths = [1usize, 2, 63, 1024, 4096, 9000, 60000];
            for (number, len) in lengths.into_iter().enumerate() {
                let mut packet = flow.build(len).map_err(|_| EIO)?;
                for (at, byte) in packet.payload_mut().iter_mut().enumerate() {
                    *byte = (number + at) as u8;
                }
                queue.push(packet);
            }
            let outcome = queue.send();
            assert_eq!(outcome.sent as usize, lengths.len());
            assert_eq!(outcome.lost, 0);
            assert!(outcome.stopped.is_none());
            assert!(queue.is_empty());
            for _ in 0..1000 {
                if receiver.count() == lengths.len() {
                    break;
                }
                fsleep(Delta::from_millis(1));
            }
            drop(port);
            let got = receiver.got.lock();
            assert_eq!(got.len(), lengths.len());
            for (number, len) in lengths.into_iter().enumerate() {
                let sum = (0..len).map(|at| u64::from((number + at) as u8)).sum();
                assert_eq!(got[number], (number as u8, len, sum));
            }
        }
        Ok(())
    }

    #[test]
    fn groups_by_address() {
        let mapped = |a, b| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, 1, 2, b];
        for (a, is) in [
            (223, false),
            (224, true),
            (239, true),
            (240, false),
            (255, false),
        ] {
            let group = MulticastAddr::from_mapped(&mapped(a, 3));
            assert_eq!(group, is.then_some(MulticastAddr::V4([a, 1, 2, 3])));
        }
        let mut v6 = V6;
        assert_eq!(MulticastAddr::from_mapped(&v6), None);
        v6[0] = 0xff;
        assert_eq!(MulticastAddr::from_mapped(&v6), Some(MulticastAddr::V6(v6)));
        // What is not quite a mapped IPv4 address.
        let mut other = mapped(224, 3);
        other[9] = 1;
        assert_eq!(MulticastAddr::from_mapped(&other), None);
        let mut header = [0; 20];
        assert_eq!(IpHeader::V4(&header).group(), None);
        header[16..].copy_from_slice(&[224, 0, 0, 9]);
        let group = Some(MulticastAddr::V4([224, 0, 0, 9]));
        assert_eq!(IpHeader::V4(&header).group(), group);
        let mut header = [0; 40];
        assert_eq!(IpHeader::V6(&header).group(), None);
        header[24..].copy_from_slice(&v6);
        assert_eq!(IpHeader::V6(&header).group(), Some(MulticastAddr::V6(v6)));
    }

    #[test]
    fn joins_and_leaves() -> Result {
        let lo = loopback();
        let mut v6 = V6;
        (v6[0], v6[1]) = (0xff, 0x15);
        for group in [MulticastAddr::V4([239, 9, 8, 7]), MulticastAddr::V6(v6)] {
            // One that it is no member of may be left.
            lo.leave(&Rtnl::lock(), group);
            for _ in 0..3 {
                lo.join(&Rtnl::lock(), group)?;
            }
            for _ in 0..4 {
                lo.leave(&Rtnl::lock(), group);
            }
        }
        Ok(())
    }

    #[test]
    fn a_port_is_taken_once_and_given_back() -> Result {
        let receiver = Receiver::new()?;
        for _ in 0..3 {
            let port = UdpPort::new(&loopback(), PORT, receiver.clone())?;
            assert!(UdpPort::new(&loopback(), PORT, receiver.clone()).err() == Some(EADDRINUSE));
            drop(port);
        }
        assert!(Arc::into_unique_or_drop(receiver).is_some());
        Ok(())
    }
}
