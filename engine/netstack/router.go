package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
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
