package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/relay"
	"weft/wire"
)

// payload is the length in bytes of a datagram that is relayed: a WireGuard packet of an inner MTU of 1420, whose
// first eight bytes are its number.
const payload = 1452

// network is a network of nodes whose tickets a weft relay takes.
type network struct {
	signing key.SigningPrivate
	relay   weft.Relay
}

// node makes a node of the network.
func (n *network) node(id weft.NodeID) (key.NodePrivate, []byte) {
	k := key.NewPrivate[key.Node]()
	return k, wire.SignTicket(nil, wire.Ticket{Node: id, Network: [8]byte{'b', 'e', 'n', 'c', 'h'}, Key: k.Public(), NotAfter: time.Now().Add(time.Hour)}, n.signing)
}

// udpFlow is a flow over a UDP relay.
type udpFlow struct {
	from, to *net.UDPConn
	out      *host.UDPWriter
	relay    host.UDPDest
	frames   []byte // a burst
	ended    chan struct{}
}

const udpFrame = wire.DataPrefix + payload

// udp joins nodes 2i+1 and 2i+2 by UDP. Without runs, datagrams leave the sender one by one.
func (n *network) udp(ctx context.Context, i int, f *flow, runs bool) (_ sender, err error) {
	u := &udpFlow{out: host.NewUDPWriter(), ended: make(chan struct{})}
	u.out.Patient = true
	ids := [2]weft.NodeID{weft.NodeID(2*i + 1), weft.NodeID(2*i + 2)}
	for j, c := range []**net.UDPConn{&u.from, &u.to} {
		if *c, err = n.bind(ctx, ids[j]); err != nil {
			return nil, errors.Join(err, u.shut())
		}
	}
	from, err := host.NewUDPSocket(u.from)
	if err != nil {
		return nil, errors.Join(err, u.shut())
	}
	to, err := host.NewUDPSocket(u.to)
	if err != nil {
		return nil, errors.Join(err, u.shut())
	}
	if !runs {
		if err := from.WithoutOffload(); err != nil {
			return nil, errors.Join(err, u.shut())
		}
	}
	from.SetDest(&u.relay, n.relay.UDP[0], netip.Addr{})
	u.frames = make([]byte, burst*udpFrame)
	for at := 0; at < len(u.frames); at += udpFrame {
		wire.AppendData(u.frames[at:at], ids[1])
	}
	go func() {
		defer close(u.ended)
		var t tally
		for r := host.NewUDPReader(to); ; f.tell(&t) {
			reads, err := r.Read()
			if err != nil {
				return
			}
			for i := range reads {
				m := &reads[i]
				for at := 0; at+m.Segment <= len(m.Data) && m.Segment == udpFrame; at += m.Segment {
					t.count(binary.BigEndian.Uint64(m.Data[at+wire.DataPrefix:]))
				}
			}
		}
	}()
	return u, nil
}

// udpFlowBuffer is asked for in each direction of a node's socket, in bytes, as the data plane does.
const udpFlowBuffer = 7 << 20

// bind opens a socket and binds it to the relay.
func (n *network) bind(ctx context.Context, id weft.NodeID) (*net.UDPConn, error) {
	k, ticket := n.node(id)
	binding, err := relay.NewUDPBinding(relay.UDPBindingConfig{NodeKey: k, Relay: n.relay, Ticket: ticket})
	if err != nil {
		return nil, err
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("a node of the benchmark: %w", err)
	}
	_, _, _ = host.SetUDPBuffers(c, udpFlowBuffer)
	buf := make([]byte, 2048)
	for ctx.Err() == nil && binding.Refused() == wire.RefusedNot {
		frame, next := binding.Poll(time.Now())
		if frame != nil {
			if _, err := c.WriteToUDPAddrPort(frame, n.relay.UDP[0]); err != nil {
				c.Close()
				return nil, fmt.Errorf("a node of the benchmark: %w", err)
			}
		}
		c.SetReadDeadline(next)
		size, _, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			continue // the deadline: Poll says what next
		}
		binding.Handle(time.Now(), buf[:size])
		if binding.Bound() {
			c.SetReadDeadline(time.Time{})
			return c, nil
		}
	}
	c.Close()
	return nil, fmt.Errorf("a node of the benchmark is not bound to the relay: %s", binding.Refused())
}

func (u *udpFlow) send(first uint64, n int) error {
	for i := range n {
		binary.BigEndian.PutUint64(u.frames[i*udpFrame+wire.DataPrefix:], first+uint64(i))
	}
	u.out.Add(&u.relay, u.frames[:n*udpFrame], udpFrame)
	u.out.Flush()
	return nil
}

func (u *udpFlow) shut() error {
	for _, c := range []*net.UDPConn{u.from, u.to} {
		if c != nil {
			c.Close()
		}
	}
	return nil
}

func (u *udpFlow) Close() error {
	u.shut()
	<-u.ended
	return nil
}
