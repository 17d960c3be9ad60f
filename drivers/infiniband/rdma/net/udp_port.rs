// SPDX-License-Identifier: GPL-2.0

//! A UDP port whose datagrams go to a function instead of a socket's queue.
//!
//! There is a socket for the port: it keeps others off, and gets what is odd (IP options, extension
//! headers, IPsec policies). The rest is taken by a netfilter hook behind all rules of the firewall,
//! just before UDP would look for a socket: there a train of datagrams still is in one piece, while
//! UDP would cut it up for a socket with `encap_rcv` (`udp_unexpected_gso`). Another hook, before IPv4
//! looks up where a packet goes, gives it the route of those before it. A kernel without netfilter
//! does without.
//!
//! C headers: [`include/net/udp_tunnel.h`](srctree/include/net/udp_tunnel.h),
//! [`include/linux/netfilter.h`](srctree/include/linux/netfilter.h)
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
    /// A datagram, or a train of them, has come in. Its UDP checksum was not looked at if it is one
    /// that [`RxPacket::ip`] shows all headers of: the protocol above has to have its own.
    ///
    /// # Context
    ///
    /// Softirq, RCU read side lock held, must not sleep. May run on several CPUs at the same time.
    /// It may send: the packets of the local host are queued and not delivered from within the
    /// call.
    fn receive(&self, packet: RxPacket);
}

/// What the sockets' user data and the hooks' private data point to. Aligned as the first wants it:
/// the low three bits are flags (`SK_USER_DATA_*`, include/net/sock.h).
#[repr(align(8))]
struct Receiver<H> {
    handler: Arc<H>,
    #[cfg(CONFIG_NETFILTER)]
    port: u16,
    #[cfg(CONFIG_NETFILTER)]
    routes: InputRoutes,
}

/// Routes of packets that came in, see `helpers/net.c`.
///
/// # Invariants
///
/// The pointer is what `alloc_input_routes` returned, owned by this value.
#[cfg(CONFIG_NETFILTER)]
struct InputRoutes(*mut c_void);

#[cfg(CONFIG_NETFILTER)]
// SAFETY: A per-CPU allocation is not bound to the thread that made it.
unsafe impl Send for InputRoutes {}

#[cfg(CONFIG_NETFILTER)]
// SAFETY: Each CPU uses its own part.
unsafe impl Sync for InputRoutes {}

#[cfg(CONFIG_NETFILTER)]
impl InputRoutes {
    /// None so far.
    fn new() -> Result<Self> {
        // SAFETY: The caller may sleep, as `__alloc_percpu` (include/linux/percpu.h) wants; it returns
        // zeroed memory or null.
        let routes = unsafe { bindings::alloc_input_routes() };
        match routes.is_null() {
            true => Err(ENOMEM),
            // INVARIANT: Allocated just now.
            false => Ok(Self(routes)),
        }
    }
}

#[cfg(CONFIG_NETFILTER)]
impl Drop for InputRoutes {
    fn drop(&mut self) {
        // SAFETY: By the type invariant they are ours; the hooks that used them are gone, as `UdpPort`
        // waits for them first.
        unsafe { bindings::free_input_routes(self.0) };
    }
}

/// A netfilter hook that is registered.
#[cfg(CONFIG_NETFILTER)]
struct Hook(KBox<bindings::nf_hook_ops>);

#[cfg(CONFIG_NETFILTER)]
// SAFETY: A hook is not bound to the thread that registered it.
unsafe impl Send for Hook {}

#[cfg(CONFIG_NETFILTER)]
// SAFETY: There is nothing to do with a shared reference.
unsafe impl Sync for Hook {}

#[cfg(CONFIG_NETFILTER)]
impl Hook {
    /// Registers `function`, to be called with `receiver`, for packets to the host of `loopback`.
    ///
    /// # Safety
    ///
    /// `receiver` must be what `function` wants, until an RCU grace period after
    /// [`Self::unregister`]. Without that the hook must not be dropped.
    unsafe fn register(
        loopback: &NetDevice,
        function: bindings::nf_hookfn,
        receiver: *mut c_void,
        v4: bool,
        hooknum: u32,
    ) -> Result<Self> {
        let ops = bindings::nf_hook_ops {
            hook: function,
            priv_: receiver,
            pf: if v4 {
                bindings::NFPROTO_IPV4 as u8
            } else {
                bindings::NFPROTO_IPV6 as u8
            },
            hooknum,
            priority: bindings::nf_ip_hook_priorities_NF_IP_PRI_LAST,
            ..pin_init::zeroed()
        };
        let ops = KBox::new(ops, GFP_KERNEL)?;
        let net = namespace(loopback);
        // SAFETY: The namespace is valid. The hook stays where it is until it is unregistered.
        to_result(unsafe { bindings::nf_register_net_hook(net, &*ops) })?;
        Ok(Self(ops))
    }

    /// Unregisters the hook. It may be dropped an RCU grace period later, when nobody is in the
    /// function any more, nor lists hooks and so reads this one.
    ///
    /// # Safety
    ///
    /// `loopback` must be the device that it was registered with. To be called once.
    unsafe fn unregister(&self, loopback: &NetDevice) {
        let net = namespace(loopback);
        // SAFETY: By the contract of this function the hook is registered there.
        unsafe { bindings::nf_unregister_net_hook(net, &*self.0) };
    }
}

/// The namespace of a loopback device, valid for as long as that is.
fn namespace(loopback: &NetDevice) -> *mut bindings::net {
    let _rcu = rcu::Guard::new();
    // SAFETY: The device is valid, and the RCU read side lock is held. A loopback device never
    // changes its namespace, and by being held keeps it from being freed.
    unsafe { bindings::dev_net_rcu(loopback.as_raw()) }
}

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
    #[cfg(CONFIG_NETFILTER)]
    hooks: [Option<Hook>; 3],
    // Dropped after the sockets and hooks, which `drop` releases.
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
            #[cfg(CONFIG_NETFILTER)]
            hooks: [None, None, None],
            receiver: KBox::new(
                Receiver {
                    handler,
                    #[cfg(CONFIG_NETFILTER)]
                    port,
                    #[cfg(CONFIG_NETFILTER)]
                    routes: InputRoutes::new()?,
                },
                GFP_KERNEL,
            )?,
            loopback: dev.loopback().ok_or(ENODEV)?,
        };
        // If one of these fails, dropping `this` undoes the other.
        this.v4 = Some(this.open(port, true)?);
        this.v6 = match this.open(port, false) {
            Err(error) if error == EAFNOSUPPORT => None,
            socket => Some(socket?),
        };
        #[cfg(CONFIG_NETFILTER)]
        {
            // One after the other: what is registered must be where `drop` finds it when the next fails.
            this.hooks[0] = Some(this.hook::<true>()?);
            if this.v6.is_some() {
                this.hooks[1] = Some(this.hook::<false>()?);
            }
            this.hooks[2] = Some(this.early_hook()?);
        }
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
        let net = namespace(&self.loopback);
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

    /// What hooks are called with: the receiver.
    #[cfg(CONFIG_NETFILTER)]
    fn hook_argument(&self) -> *mut c_void {
        let receiver: *const Receiver<H> = &*self.receiver;
        receiver.cast_mut().cast()
    }

    /// Registers the hook of one protocol.
    #[cfg(CONFIG_NETFILTER)]
    fn hook<const V4: bool>(&self) -> Result<Hook> {
        let function = Some(Self::filter::<V4> as unsafe extern "C" fn(_, _, _) -> _);
        // SAFETY: The argument is what `filter` wants. `drop` unregisters the hook and waits, before
        // either is freed.
        unsafe {
            Hook::register(
                &self.loopback,
                function,
                self.hook_argument(),
                V4,
                bindings::nf_inet_hooks_NF_INET_LOCAL_IN,
            )
        }
    }

    /// Registers the hook before the look-up of routes.
    #[cfg(CONFIG_NETFILTER)]
    fn early_hook(&self) -> Result<Hook> {
        let function = Some(Self::early as unsafe extern "C" fn(_, _, _) -> _);
        // SAFETY: As in `hook`, for `early`.
        unsafe {
            Hook::register(
                &self.loopback,
                function,
                self.hook_argument(),
                true,
                bindings::nf_inet_hooks_NF_INET_PRE_ROUTING,
            )
        }
    }

    /// The netfilter hook before IPv4 looks up routes: spares it that if it can.
    ///
    /// # Safety
    ///
    /// As for `filter`, for a hook that `early_hook` made.
    #[cfg(CONFIG_NETFILTER)]
    unsafe extern "C" fn early(
        receiver: *mut c_void,
        skb: *mut bindings::sk_buff,
        _state: *const bindings::nf_hook_state,
    ) -> kernel::ffi::c_uint {
        // SAFETY: As in `filter`.
        let receiver = unsafe { &*receiver.cast::<Receiver<H>>() };
        // SAFETY: The skb is ours, with its data at the IPv4 header and no route yet, and the RCU read
        // side lock is held (`ip_rcv`, net/ipv4/ip_input.c). The routes are valid.
        unsafe { bindings::skb_set_input_route(skb, receiver.routes.0, receiver.port) };
        bindings::NF_ACCEPT
    }

    /// The netfilter hook: takes plain datagrams for the port.
    ///
    /// # Safety
    ///
    /// To be called by netfilter only, for a hook that `hook` made, with an skb that is the callee's.
    #[cfg(CONFIG_NETFILTER)]
    unsafe extern "C" fn filter<const V4: bool>(
        receiver: *mut c_void,
        skb: *mut bindings::sk_buff,
        state: *const bindings::nf_hook_state,
    ) -> kernel::ffi::c_uint {
        // SAFETY: The hook is called between its registration and an RCU grace period after its end,
        // with the RCU read side lock held (`nf_hook`, include/linux/netfilter.h); the receiver lives
        // as long.
        let receiver = unsafe { &*receiver.cast::<Receiver<H>>() };
        // SAFETY: The skb is ours, with its data at the IP header.
        if !unsafe { bindings::skb_pull_plain_udp(skb, state, receiver.port, V4) } {
            return bindings::NF_ACCEPT;
        }
        if V4 {
            // SAFETY: The skb is ours and has come in by IPv4; the RCU read side lock is held. The routes
            // are valid.
            unsafe { bindings::skb_keep_input_route(skb, receiver.routes.0) };
        }
        // SAFETY: By the contract of this function the skb is ours, and is now as `encap_rcv` would
        // get it.
        if let Some(packet) = unsafe { RxPacket::new::<V4>(skb) } {
            receiver.handler.receive(packet);
        }
        bindings::NF_STOLEN
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
            receiver.handler.receive(packet);
        }
        0
    }
}

impl<H: UdpReceive> Drop for UdpPort<H> {
    /// # Context
    ///
    /// Process context, may sleep. The RTNL may be held.
    fn drop(&mut self) {
        #[cfg(CONFIG_NETFILTER)]
        for hook in self.hooks.iter().flatten() {
            // SAFETY: It was registered with this device, and this is done once. What follows waits
            // before the hook is freed.
            unsafe { hook.unregister(&self.loopback) };
        }
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
