package netstack

import (
	"fmt"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// SetForwarding has the stack pass on packets that are for other nodes, or drop them, as it does at first. They go out by
// the interface that they came in by: there is no other.
func (n *Netstack) SetForwarding(on bool) error {
	for _, p := range []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber} {
		if err := n.stack.SetForwardingDefaultAndAllNICs(p, on); err != nil {
			return failure("having the network stack forward", err)
		}
	}
	return nil
}

// AddService gives the stack an address that it answers at and never begins from.
func (n *Netstack) AddService(a netip.Addr) error {
	full := tcpip.ProtocolAddress{Protocol: protocol(a), AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix()}
	err := n.stack.AddProtocolAddress(nic, full, stack.AddressProperties{PEB: stack.NeverPrimaryEndpoint})
	if _, there := err.(*tcpip.ErrDuplicateAddress); err != nil && !there {
		return failure("adding address "+a.String(), err)
	}
	return nil
}

// Bind listens on one of the stack's addresses, UDP and TCP.
func (n *Netstack) Bind(at netip.AddrPort) (net.PacketConn, net.Listener, error) {
	full := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(at.Addr().AsSlice()), Port: at.Port()}
	udp, err := gonet.DialUDP(n.stack, &full, nil, protocol(at.Addr()))
	if err != nil {
		return nil, nil, fmt.Errorf("listen in the network stack on %v: %w", at, err)
	}
	tcp, err := gonet.ListenTCP(n.stack, full, protocol(at.Addr()))
	if err != nil {
		udp.Close()
		return nil, nil, fmt.Errorf("listen in the network stack on %v: %w", at, err)
	}
	return udp, tcp, nil
}
