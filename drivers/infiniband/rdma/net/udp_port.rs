// SPDX-License-Identifier: GPL-2.0

//! A UDP port whose datagrams go to a function instead of a socket's queue.
//!
//! C header: [`include/net/udp_tunnel.h`](srctree/include/net/udp_tunnel.h)
//!
//! Would become `rust/kernel/net/udp_tunnel.rs`.

use crate::{
    bindings,
    net::{
        NetDevice,
        RxPacket, //
    },
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        rcu,
        Arc, //
    },
};

/// Who receives.
pub trait UdpReceive: Send + Sync + 'static {
    /// A datagram has come in. Its UDP checksum, if it has one, is right.
    ///
    /// # Context
    ///
    /// Softirq, RCU read side lock held, must not sleep. May run on several CPUs at the same time.
    /// It may send: the packets of the local host are queued and not delivered from within the
    /// call.
    fn receive(&self, packet: RxPacket);
}

/// What the sockets' user data points to. Aligned as that wants it: the low three bits are flags
/// (`SK_USER_DATA_*`, include/net/sock.h).
#[repr(align(8))]
struct Receiver<H>(Arc<H>);

/// An open UDP port of one network namespace, all local addresses, IPv4 and (unless the kernel has
/// it switched off) IPv6.
///
/// Dropping it closes the port; no call of [`UdpReceive::receive`] runs or is made after that, and
/// the reference on the handler is dropped last.
///
/// The port keeps its namespace from being freed, see [`crate::net`].
///
/// # Invariants
///
/// - `v4` and `v6` are UDP sockets of the namespace of `loopback`, owned by this value, that are
///   not released.
/// - Their user data is the address of `receiver`.
pub struct UdpPort<H: UdpReceive> {
    v4: Option<NonNull<bindings::sock>>,
    v6: Option<NonNull<bindings::sock>>,
    // Dropped after the sockets, which `drop` releases.
    receiver: KBox<Receiver<H>>,
    // Kernel sockets have no reference on their namespace; this is what keeps it.
    loopback: ARef<NetDevice>,
}

// SAFETY: A kernel socket may be released from any thread; the handler is `Send + Sync`.
unsafe impl<H: UdpReceive> Send for UdpPort<H> {}

// SAFETY: There is nothing to do with a shared reference but to look at the namespace.
unsafe impl<H: UdpReceive> Sync for UdpPort<H> {}

impl<H: UdpReceive> UdpPort<H> {
    /// Opens `port` in the namespace of `dev`.
    ///
    /// # Context
    ///
    /// Process context, may sleep. The RTNL may be held.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE`: somebody has the port.
    /// - `ENODEV`: `dev` is going away.
    /// - `ENOMEM`.
    pub fn new(dev: &NetDevice, port: u16, handler: Arc<H>) -> Result<Self> {
        let mut this = Self {
            v4: None,
            v6: None,
            receiver: KBox::new(Receiver(handler), GFP_KERNEL)?,
            loopback: dev.loopback().ok_or(ENODEV)?,
        };
        // If one of these fails, dropping `this` undoes the other.
        this.v4 = Some(this.open(port, true)?);
        this.v6 = match this.open(port, false) {
            Err(error) if error == EAFNOSUPPORT => None,
            socket => Some(socket?),
        };
        Ok(this)
    }

    /// Opens one socket and points it at the receiver.
    fn open(&self, port: u16, v4: bool) -> Result<NonNull<bindings::sock>> {
        let mut config = bindings::udp_port_cfg {
            local_udp_port: port.to_be(),
            ..Default::default()
        };
        config.set_ipv6_v6only(1);
        let mut socket = core::ptr::null_mut();
        let net = self.net();
        // Checksums stay off in `config`: none is sent, and a datagram without one is taken, over
        // IPv6 as well.
        to_result(if v4 {
            config.family = bindings::AF_INET as u8;
            // SAFETY: The namespace is valid, held by `self.loopback`. `udp_sock_create4`
            // (net/ipv4/udp_tunnel_core.c) stores a new socket, or null and an error.
            unsafe { bindings::udp_sock_create4(net, &mut config, &mut socket) }
        } else {
            config.family = bindings::AF_INET6 as u8;
            // SAFETY: As above, for `udp_sock_create6` (net/ipv6/ip6_udp_tunnel.c).
            unsafe { bindings::udp_sock_create6(net, &mut config, &mut socket) }
        })?;
        // SAFETY: The socket was created just now, and has a `struct sock` until it is released.
        let sk = NonNull::new(unsafe { bindings::socket_sk(socket) }).ok_or(EINVAL)?;

        let receiver: *const Receiver<H> = &*self.receiver;
        let mut tunnel = bindings::udp_tunnel_sock_cfg {
            sk_user_data: receiver.cast_mut().cast(),
            // Any type but 0 will do: it says that `encap_rcv` decides.
            encap_type: 1,
            encap_rcv: Some(if v4 {
                Self::callback::<true>
            } else {
                Self::callback::<false>
            }),
            ..pin_init::zeroed()
        };
        // SAFETY: `sk` is a new UDP socket of `net`. The receiver lives until `drop` has released
        // the socket and waited for its readers.
        unsafe { bindings::setup_udp_tunnel_sock(net, sk.as_ptr(), &mut tunnel) };
        Ok(sk)
    }

    /// The namespace of the port, valid for as long as `self`.
    fn net(&self) -> *mut bindings::net {
        let _rcu = rcu::Guard::new();
        // SAFETY: The device is valid, and the RCU read side lock is held. A loopback device never
        // changes its namespace, and by being held keeps it from being freed.
        unsafe { bindings::dev_net_rcu(self.loopback.as_raw()) }
    }

    /// `encap_rcv` of both sockets: gets an skb with its data at the UDP header; 0 means that it
    /// took it.
    ///
    /// # Safety
    ///
    /// To be called by UDP's receive path only, for a socket that `open` made, with an skb that is
    /// the callee's.
    unsafe extern "C" fn callback<const V4: bool>(
        sk: *mut bindings::sock,
        skb: *mut bindings::sk_buff,
    ) -> c_int {
        // SAFETY: UDP's receive path holds the RCU read side lock (`ip_local_deliver_finish`,
        // `ip6_input_finish`), and `sk` is a socket.
        let receiver: *mut c_void = unsafe { bindings::rcu_dereference_sk_user_data(sk) };
        // SAFETY: By the contract of this function the skb is ours and as `encap_rcv` gets it.
        let packet = unsafe { RxPacket::new::<V4>(skb) };
        // SAFETY: By the type invariant the user data is null or a `Receiver<H>`, which is freed
        // only after an RCU grace period that starts after the user data was cleared.
        let receiver = unsafe { receiver.cast::<Receiver<H>>().as_ref() };
        if let (Some(packet), Some(receiver)) = (packet, receiver) {
            receiver.0.receive(packet);
        }
        0
    }
}

impl<H: UdpReceive> Drop for UdpPort<H> {
    /// # Context
    ///
    /// Process context, may sleep. The RTNL may be held.
    fn drop(&mut self) {
        for sk in [self.v4.take(), self.v6.take()].into_iter().flatten() {
            // SAFETY: By the type invariant the socket is ours and not released. This clears its
            // user data first.
            unsafe { bindings::udp_tunnel_sock_release(sk.as_ptr()) };
        }
        // SAFETY: `synchronize_net` (net/core/dev.c) only needs a context that may sleep. It waits
        // for the receive paths that may still have the user data.
        unsafe { bindings::synchronize_net() };
    }
}
