package netstack

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"weft/engine"
)

// What waits for the engine at most; what is beyond is dropped, and slows TCP down. Packets: the length of a Linux TUN
// device's queue (TUN_READQ_SIZE is 500) doubled. Bytes: two windows as connections have them at first.
const (
	maxPackets = 1024
	maxBytes   = 2 * defaultBuffer
)

// A link is the stack's only interface: what the stack sends waits here until it is taken. The stack need not cut TCP
// to packets, nor make its checksums: its segments leave as super-packets.
type link struct {
	mtu        atomic.Uint32
	attached   atomic.Bool
	mu         sync.Mutex
	wake       sync.Cond // one reader waits here: who finds the ring empty
	ring       [maxPackets]*stack.PacketBuffer
	head, n    int
	bytes      int
	woken, end bool
	timer      *time.Timer // ends a wait that has an end
	late       bool        // it has
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

func newLink(mtu int) *link {
	l := &link{}
	l.mtu.Store(uint32(mtu))
	l.wake.L = &l.mu
	return l
}

// WritePackets queues packets for the engine, as many as there is room for.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	l.mu.Lock()
	if l.end {
		l.mu.Unlock()
		return 0, &tcpip.ErrClosedForSend{}
	}
	queued := 0
	for _, p := range list.AsSlice() {
		if l.n == maxPackets || l.bytes+p.Size() > maxBytes {
			break
		}
		l.ring[(l.head+l.n)%maxPackets] = p.IncRef()
		l.n++
		l.bytes += p.Size()
		queued++
	}
	l.mu.Unlock()
	if queued > 0 {
		l.wake.Signal() // a no-op unless the reader waits
	}
	return queued, nil
}

// await waits until there is a packet, until it is interrupted, or so long at most; if that is negative, without an end.
func (l *link) await(most time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 && !l.woken && !l.end && most != 0 {
		if l.late = false; most > 0 {
			l.alarm(most)
			defer l.timer.Stop()
		}
		for l.n == 0 && !l.woken && !l.end && !l.late {
			l.wake.Wait()
		}
	}
	if l.end {
		return os.ErrClosed
	}
	if l.n == 0 {
		l.woken = false
	}
	return nil
}

// take takes the first packet, which is then the caller's. Nil without an error means that there is none.
func (l *link) take() (*stack.PacketBuffer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.end:
		return nil, os.ErrClosed
	case l.n == 0:
		return nil, nil
	}
	p := l.ring[l.head]
	l.ring[l.head] = nil
	l.head = (l.head + 1) % maxPackets
	l.n--
	l.bytes -= p.Size()
	return p, nil
}

// alarm has a wait end after some time. One that was set for an earlier wait ends this one at worst: who waits looks again.
func (l *link) alarm(most time.Duration) {
	if l.timer != nil {
		l.timer.Reset(most)
		return
	}
	l.timer = time.AfterFunc(most, func() {
		l.mu.Lock()
		l.late = true
		l.mu.Unlock()
		l.wake.Signal()
	})
}

// interrupt ends the wait for a packet, or else the next.
func (l *link) interrupt() {
	l.mu.Lock()
	l.woken = true
	l.mu.Unlock()
	l.wake.Signal()
}

// Close lets go of what waits. The stack calls it too, when it ends.
func (l *link) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = true
	for ; l.n > 0; l.n-- {
		l.ring[l.head].DecRef()
		l.ring[l.head] = nil
		l.head = (l.head + 1) % maxPackets
	}
	l.bytes = 0
	l.wake.Broadcast()
}

func (l *link) MTU() uint32       { return l.mtu.Load() }
func (l *link) SetMTU(mtu uint32) { l.mtu.Store(mtu) }

// SupportedGSO says that super-packets are taken as a network card takes them.
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// What the stack takes from GSOMaxSize for headers before it cuts, and from the MTU for those of a segment: IPv4's, and
// TCP's with all the options that it may have.
const (
	stackHeaders   = header.TCPTotalHeaderMaximumSize + 1
	segmentHeaders = header.IPv4MinimumSize + header.TCPHeaderMaximumSize
)

// GSOMaxSize has the stack cut its stream into super-packets of whole segments, one fewer than leave in one send:
// IPv6's segments are shorter, so it has one more.
func (l *link) GSOMaxSize() uint32 {
	mtu := int(l.MTU())
	segments := max(1, engine.Segments(mtu)-1)
	return uint32(stackHeaders + segments*max(1, mtu-segmentHeaders))
}

// Capabilities are none: whether a packet's checksum is known to be right is said packet by packet.
func (l *link) Capabilities() stack.LinkEndpointCapabilities { return stack.CapabilityNone }

func (l *link) Attach(d stack.NetworkDispatcher) { l.attached.Store(d != nil) }
func (l *link) IsAttached() bool                 { return l.attached.Load() }

// The rest says that there is no link layer.

func (l *link) MaxHeaderLength() uint16                 { return 0 }
func (l *link) LinkAddress() tcpip.LinkAddress          { return "" }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *link) AddHeader(*stack.PacketBuffer)           {}
func (l *link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (l *link) SetOnCloseAction(func())                 {}
