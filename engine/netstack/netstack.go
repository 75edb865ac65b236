// Package netstack takes the place of the TUN device where there is no root to make one: a TCP/IP stack in
// this process (gVisor's), whose one interface is a device for the engine.
//
//	program --> 127.0.0.1:proxy --> DialContext --> stack --> Read --> engine
//	engine --> Write --> stack --> forwarder --> 127.0.0.1:port --> program
//
// Outwards, the proxy (package proxy) dials through [Netstack.DialContext]. Inwards, a TCP connection or UDP
// flow to one of the node's overlay addresses is joined to the same port of 127.0.0.1, which is what a program
// of the user's would listen on; a port where nothing listens is refused, as the kernel would. Echo requests
// are answered by the stack.
//
// All that a peer can make this process hold is bounded: connections that are not established yet, those that
// are, UDP flows. Connections to peers that have gone are found by keepalives, silent ones are closed after
// what the RFCs ask of a NAT.
//
// TCP runs CUBIC with SACK and RACK. On the way out its segments are super-packets without checksums, as for a
// network card: whoever takes them apart makes those. On the way in, what the engine put together is taken as one
// segment: its checksums were verified when that was done. All others are verified by the stack, for WireGuard
// vouches for what the peer sent, not for what the peer was given to send.
package netstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// nic is the number of the stack's only interface.
const nic tcpip.NICID = 1

// A Netstack is the stack. Its methods may be called from any goroutine.
type Netstack struct {
	stack *stack.Stack
	log   *slog.Logger

	ctx   context.Context // ends with the device
	stop  context.CancelFunc
	flows flows

	mu    sync.Mutex
	addrs []netip.Addr
	owned atomic.Pointer[[]netip.Addr] // what addrs is, for those who read packets
}

// newNetstack makes a stack whose interface is this link.
func newNetstack(link stack.LinkEndpoint, addrs []netip.Addr, log *slog.Logger) (*Netstack, error) {
	n := &Netstack{
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocolCUBIC, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
			HandleLocal:        true, // a node may dial itself
		}),
		log: log,
	}
	n.ctx, n.stop = context.WithCancel(context.Background())
	if err := n.tune(); err != nil {
		return nil, err
	}
	if err := n.stack.CreateNIC(nic, link); err != nil {
		return nil, failure("making the interface of the network stack", err)
	}
	n.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	n.forward()
	if err := n.SetAddrs(addrs); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// failure makes an error of the stack's into one of Go's.
func failure(doing string, err tcpip.Error) error { return fmt.Errorf("%s: %s", doing, err) }

// bufferSizes are of TCP's windows, in bytes: 1 MiB at first and 8 MiB at most, which is 640 Mbit/s over
// 100 ms.
const (
	minBuffer     = tcp.MinBufferSize
	defaultBuffer = 1 << 20
	maxBuffer     = 8 << 20
)

func (n *Netstack) tune() error {
	sack := tcpip.TCPSACKEnabled(true)
	recovery := tcpip.TCPRACKLossDetection
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer}
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &recovery, &moderate, &rcv, &snd} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return failure("tuning the network stack", err)
		}
	}
	return nil
}

// SetAddrs makes these the node's overlay addresses, and no others. Connections of an address that stays go
// on.
func (n *Netstack) SetAddrs(addrs []netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() {
		own := slices.Clone(n.addrs)
		n.owned.Store(&own)
	}()
	var errs []error
	for _, old := range slices.Clone(n.addrs) {
		if slices.Contains(addrs, old) {
			continue
		}
		if err := n.stack.RemoveAddress(nic, tcpip.AddrFromSlice(old.AsSlice())); err != nil {
			errs = append(errs, failure("removing address "+old.String(), err))
			continue
		}
		n.addrs = slices.DeleteFunc(n.addrs, func(a netip.Addr) bool { return a == old })
	}
	for _, a := range addrs {
		if slices.Contains(n.addrs, a) {
			continue
		}
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			errs = append(errs, fmt.Errorf("%s is not an overlay address", a))
			continue
		}
		full := tcpip.ProtocolAddress{
			Protocol:          protocol(a),
			AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix(),
		}
		if err := n.stack.AddProtocolAddress(nic, full, stack.AddressProperties{}); err != nil {
			errs = append(errs, failure("adding address "+a.String(), err))
			continue
		}
		n.addrs = append(n.addrs, a)
	}
	return errors.Join(errs...)
}

func protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// DialContext connects to an overlay address; network is "tcp" or "udp". Failures are told as the kernel's
// are: syscall.ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH.
func (n *Netstack) DialContext(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if !addr.IsValid() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.EINVAL}
	}
	if n.ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(addr), Err: net.ErrClosed}
	}
	to := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(addr.Addr().AsSlice()), Port: addr.Port()}
	switch network {
	case "tcp", "tcp4", "tcp6":
		c, err := gonet.DialContextTCP(ctx, n.stack, to, protocol(addr.Addr()))
		if err != nil {
			return nil, dialError(network, net.TCPAddrFromAddrPort(addr), err)
		}
		return c, nil
	case "udp", "udp4", "udp6":
		c, err := gonet.DialUDP(n.stack, nil, &to, protocol(addr.Addr()))
		if err != nil {
			return nil, dialError(network, net.UDPAddrFromAddrPort(addr), err)
		}
		return c, nil
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
}

// errnos are the kernel's words for the stack's, which gonet passes on as text.
var errnos = map[string]syscall.Errno{
	(&tcpip.ErrConnectionRefused{}).String():         syscall.ECONNREFUSED,
	(&tcpip.ErrConnectionReset{}).String():           syscall.ECONNRESET,
	(&tcpip.ErrConnectionAborted{}).String():         syscall.ECONNABORTED,
	(&tcpip.ErrTimeout{}).String():                   syscall.ETIMEDOUT,
	(&tcpip.ErrHostUnreachable{}).String():           syscall.EHOSTUNREACH,
	(&tcpip.ErrHostDown{}).String():                  syscall.EHOSTDOWN,
	(&tcpip.ErrNetworkUnreachable{}).String():        syscall.ENETUNREACH,
	(&tcpip.ErrBadLocalAddress{}).String():           syscall.ENETUNREACH, // no address of this family
	(&tcpip.ErrDestinationRequired{}).String():       syscall.EDESTADDRREQ,
	(&tcpip.ErrNoPortAvailable{}).String():           syscall.EADDRNOTAVAIL,
	(&tcpip.ErrInvalidEndpointState{}).String():      syscall.EINVAL,
	(&tcpip.ErrAddressFamilyNotSupported{}).String(): syscall.EAFNOSUPPORT,
}

func dialError(network string, addr net.Addr, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	if errno, ok := errnos[err.Error()]; ok {
		err = errno
	}
	return &net.OpError{Op: "dial", Net: network, Addr: addr, Err: err}
}

// close closes the stack and every connection in it.
func (n *Netstack) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	n.stop()
	n.stack.Close()
	done := make(chan struct{})
	go func() { defer close(done); n.flows.close() }()
	for again := time.NewTicker(abortAgain); ; {
		select {
		case <-done:
			again.Stop()
			return
		case <-again.C:
			for _, ep := range n.stack.RegisteredEndpoints() {
				ep.Abort()
			}
		}
	}
}

// abortAgain is how often Close looks for connections that began while it closed the others: they would be
// waited for until TCP gives up, a minute.
const abortAgain = 50 * time.Millisecond
