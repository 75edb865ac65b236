package netstack

import (
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"weft/engine/splice"
)

// What peers can make this process hold at most. Each takes a descriptor; Go raises the limit of open files to
// the hard one, which is 4096 where nobody has changed it (INR_OPEN_MAX).
const (
	maxHalfOpen = 128
	maxTCP      = 1024
	maxUDP      = 1024
)

const (
	// localPatience is how long a program on this machine has to accept.
	localPatience = 10 * time.Second
	// keepaliveIdle and keepaliveEvery are when a silent peer is asked whether it is there, and how often;
	// the stack gives up after nine questions, so a dead peer is known after about four minutes.
	keepaliveIdle  = 2 * time.Minute
	keepaliveEvery = 15 * time.Second
	// idleWellKnown is the patience with UDP flows to ports below 1024, most of which are one question and one
	// answer: RFC 4787 section 4.3 lets it be shorter there, and this is Linux's for such.
	idleWellKnown = 30 * time.Second
)

// flows counts what is being forwarded.
type flows struct {
	mu       sync.Mutex
	tcp, udp int
	closed   bool
	wg       sync.WaitGroup
}

// take takes a place, if there is one.
func (f *flows) take(count *int, limit int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || *count >= limit {
		return false
	}
	*count++
	f.wg.Add(1)
	return true
}

func (f *flows) giveBack(count *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*count--
	f.wg.Done()
}

// close lets no more begin, and waits for the end of all.
func (f *flows) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.wg.Wait()
}

func (n *Netstack) forward() {
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(n.stack, 0, maxHalfOpen, n.forwardTCP).HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(n.stack, n.forwardUDP).HandlePacket)
}

// local is where a program that serves an overlay port listens.
func local(id stack.TransportEndpointID) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(id.LocalPort)))
}

// forwardTCP runs in a goroutine of its own. The connection is accepted after the program has accepted it, and
// refused if that has refused.
func (n *Netstack) forwardTCP(r *tcp.ForwarderRequest) {
	refuse := func() { r.Complete(true) }
	if !n.flows.take(&n.flows.tcp, maxTCP) {
		refuse()
		return
	}
	defer n.flows.giveBack(&n.flows.tcp)

	id := r.ID()
	ctx, cancel := context.WithTimeout(n.ctx, localPatience)
	defer cancel()
	program, err := new(net.Dialer).DialContext(ctx, "tcp", local(id))
	if err != nil {
		n.log.Debug("a peer's connection is refused", "peer", id.RemoteAddress, "port", id.LocalPort, "error", err)
		refuse()
		return
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil {
		program.Close()
		refuse()
		return
	}
	r.Complete(false)
	ep.SocketOptions().SetKeepAlive(true)
	idle, every := tcpip.KeepaliveIdleOption(keepaliveIdle), tcpip.KeepaliveIntervalOption(keepaliveEvery)
	ep.SetSockOpt(&idle)
	ep.SetSockOpt(&every)
	n.join(splice.Streams, gonet.NewTCPConn(&wq, ep), program, splice.IdleTCP)
}

// forwardUDP is called with the first packet of a flow, by the goroutine that brings packets.
func (n *Netstack) forwardUDP(r *udp.ForwarderRequest) {
	if !n.flows.take(&n.flows.udp, maxUDP) {
		return
	}
	id := r.ID()
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		n.flows.giveBack(&n.flows.udp)
		return
	}
	go func() {
		defer n.flows.giveBack(&n.flows.udp)
		peer := gonet.NewUDPConn(&wq, ep)
		program, err := net.Dial("udp", local(id))
		if err != nil {
			peer.Close()
			return
		}
		idle := splice.IdleUDP
		if id.LocalPort < 1024 {
			idle = idleWellKnown
		}
		n.join(splice.Datagrams, peer, program, idle)
	}()
}

// join joins until the flow or the stack ends.
func (n *Netstack) join(how func(a, b net.Conn, idle time.Duration), peer, program net.Conn, idle time.Duration) {
	defer context.AfterFunc(n.ctx, func() {
		peer.Close()
		program.Close()
	})()
	how(peer, program, idle)
}
