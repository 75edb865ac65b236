package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"weft"
	"weft/host"
	"weft/stun"
	"weft/wire"
)

const (
	// udpBuffer is asked for in each direction of a UDP socket, in bytes: at 5 Gbit/s, 10 ms.
	udpBuffer = 8 << 20
	// maxReply is the longest answer in bytes: STUN's with its attributes, and Bound.
	maxReply = 1024
	// maxReplies is how many answers wait until they are sent.
	maxReplies = host.UDPBatch
)

// Respond answers a datagram that is STUN's: it adds the answer to dst, or reports false. From is its sender;
// local the address and port of this machine that was hit, as far as that is known. It runs where datagrams are
// forwarded and must not wait.
type Respond func(dst, req []byte, from, local netip.AddrPort) (stun.Reply, bool)

// Port is a UDP port that a relay serves on one family, and a second one beside it.
type Port struct {
	// Main are the sockets of the port, one or more: the kernel spreads senders over them (host.UDPListen), and
	// each has a goroutine, so that a machine with more cores forwards more.
	Main []*net.UDPConn
	// Alternate is of the same family and address as Main, or nil. It answers STUN and nothing else: what a NAT
	// makes of another port of the same address is seen there, and from there answers come that were asked for
	// at Main.
	Alternate *net.UDPConn
}

// ServeUDP reads the sockets until ctx ends or the server is closed, and then returns nil; or until one of them
// fails. It takes what the relay is sent and hands STUN to respond, which may be nil. It does not close the
// sockets.
func (s *Server) ServeUDP(ctx context.Context, ports []Port, respond Respond) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops []*loop
	for _, p := range ports {
		mains := make([]*loop, len(p.Main))
		for i, conn := range p.Main {
			socket, err := s.open(conn)
			if err != nil {
				return err
			}
			mains[i] = s.newLoop(socket, respond)
			mains[i].most = uint16(max(1, maxPerSource/len(p.Main)))
		}
		loops = append(loops, mains...)
		if p.Alternate == nil {
			continue
		}
		twin, err := s.open(p.Alternate)
		if err != nil {
			return err
		}
		alternate := s.newLoop(twin, respond)
		alternate.twin, alternate.onlySTUN = mains[0].socket, true
		for _, l := range mains {
			l.twin = twin
		}
		loops = append(loops, alternate)
	}
	var wg sync.WaitGroup
	for _, l := range loops {
		wg.Go(func() {
			if err := l.run(ctx); err != nil {
				cancel(fmt.Errorf("relay on UDP %s: %w", l.socket.Local(), err))
			}
		})
	}
	wg.Go(func() { s.verify(ctx) })
	wg.Go(func() {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.closed:
				cancel(nil)
				return
			case <-tick.C:
				s.sweep()
			}
		}
	})
	<-ctx.Done()
	deadline := func(t time.Time) {
		for _, p := range ports {
			for _, c := range p.Main {
				_ = c.SetReadDeadline(t)
			}
			if p.Alternate != nil {
				_ = p.Alternate.SetReadDeadline(t)
			}
		}
	}
	deadline(time.Unix(1, 0))
	wg.Wait()
	deadline(time.Time{})
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// open prepares a socket.
func (s *Server) open(conn *net.UDPConn) (*host.UDPSocket, error) {
	if got, _, err := host.SetUDPBuffers(conn, udpBuffer); err == nil && got < udpBuffer {
		s.log.Debug("smaller UDP buffers than asked for: raise net.core.rmem_max, or run with CAP_NET_ADMIN", "bytes", got, "wanted", udpBuffer)
	}
	socket, err := host.NewUDPSocket(conn)
	if err == nil {
		s.slow.add(socket)
	}
	return socket, err
}

// loop is what one goroutine needs to serve a socket.
type loop struct {
	s      *Server
	socket *host.UDPSocket
	// twin is the other of a main and an alternate port, or nil.
	twin     *host.UDPSocket
	onlySTUN bool // this is an alternate port
	respond  Respond
	out      *host.UDPWriter

	now     time.Duration // of the batch
	replies [maxReplies]host.UDPDest
	text    [maxReplies][maxReply]byte // of the replies
	n       int                        // replies in use
	scratch [wire.AskScratch]byte

	// What the last datagram was resolved to, since the next is likely of the same flow. For one batch.
	from   netip.AddrPort
	sender *binding
	to     nodeName
	node   *node

	perSource [sources]uint16
	most      uint16 // of one source in a second
	second    time.Duration
	ahead     bool // of a stream's writer
}

func (s *Server) newLoop(socket *host.UDPSocket, respond Respond) *loop {
	return &loop{s: s, socket: socket, respond: respond, out: host.NewUDPWriter(), most: maxPerSource}
}

func (l *loop) run(ctx context.Context) error {
	r := host.NewUDPReader(l.socket)
	defer r.Close()
	for {
		reads, err := r.Read()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		l.begin()
		for i := range reads {
			l.take(&reads[i])
		}
		l.flush()
		if l.ahead {
			l.ahead = false
			runtime.Gosched()
		}
	}
}

func (l *loop) begin() {
	l.now = l.s.now()
	l.from, l.sender, l.to, l.node = netip.AddrPort{}, nil, nodeName{}, nil
	if l.now-l.second >= time.Second {
		clear(l.perSource[:])
		l.second = l.now
	}
}

func (l *loop) flush() {
	c := l.out.Flush()
	count := &l.s.count
	if c.Datagrams > 0 {
		count.udpDatagrams.Add(uint64(c.Datagrams))
		count.udpBytes.Add(uint64(c.Bytes))
	}
	count.drop(DropFull, c.Full)
	count.drop(DropRefused, c.Failed)
	l.n = 0
}

// take deals with one message: a datagram, or a run of them from one sender.
func (l *loop) take(m *host.UDPRead) {
	for data := m.Data; len(data) > 0; {
		n := min(m.Segment, len(data))
		if id, _, err := wire.ParseData(data[:n]); err == nil && !l.onlySTUN {
			run, count := dataRun(data, m.Segment)
			l.forward(m, id, data[:run], count)
			data = data[run:]
			continue
		}
		l.single(m, data[:n])
		data = data[n:]
	}
}

// dataRun returns how many bytes, and how many datagrams of at most size bytes, from the first on are Data
// frames for the same node.
func dataRun(data []byte, size int) (run, count int) {
	prefix := data[:wire.DataPrefix]
	for run < len(data) {
		n := min(size, len(data)-run)
		if n <= wire.DataPrefix || !bytes.Equal(data[run:run+wire.DataPrefix], prefix) {
			break
		}
		run += n
		count++
	}
	return run, count
}

// forward sends a run of Data frames of one sender to one node.
func (l *loop) forward(m *host.UDPRead, id weft.NodeID, data []byte, count int) {
	s := l.s
	if l.sender == nil || m.From != l.from {
		l.from, l.sender = m.From, s.addrs.get(addrName(m.From))
	}
	from := l.sender
	if from == nil || int64(l.now) >= from.ends.Load() {
		s.count.drop(DropStranger, count)
		return
	}
	if s.limited(from.node, l.now, len(data), count) {
		return
	}
	name := nodeName{network: from.node.name.network, id: id}
	if l.node == nil || name != l.to {
		l.to, l.node = name, s.nodes.get(name)
	}
	if l.node == nil {
		s.count.drop(DropNoSuch, count)
		return
	}
	if b := l.node.binding(l.now); b != nil {
		for at := 0; at < len(data); at += m.Segment {
			wire.SetDataID(data[at:], from.node.name.id)
		}
		l.out.Add(&b.dest, data, m.Segment)
		return
	}
	if ss := l.node.session(l.now); ss != nil {
		l.ahead = ss.out.datagrams(from.node.name.id, data, m.Segment) || l.ahead
		return
	}
	s.count.drop(DropNoSuch, count)
}

// single deals with a datagram that is not Data.
func (l *loop) single(m *host.UDPRead, b []byte) {
	if m.From.Port() == 0 { // nothing can be sent there
		l.s.count.drop(DropMalformed, 1)
		return
	}
	kind, _ := wire.KindOf(b)
	switch {
	case l.respond != nil && kind == 0 && wire.Classify(b) == wire.ClassSTUN:
		l.stun(m, b)
	case l.onlySTUN:
		l.s.count.drop(DropMalformed, 1)
	case kind == wire.KindBind:
		l.bind(m, b)
	case kind == wire.KindLocate:
		l.locate(m, b)
	case kind == wire.KindProbe:
		l.probe(m, b)
	default:
		l.s.count.drop(DropMalformed, 1)
	}
}

// stun answers a STUN request, from the port that the answer is asked for from.
func (l *loop) stun(m *host.UDPRead, b []byte) {
	dest, text := l.reply(m)
	r, ok := l.respond(text, b, m.From, localOf(l.socket, m.Local))
	if !ok {
		return
	}
	switch via := l.socket; {
	case l.twin != nil && r.From.Port() == l.twin.Local().Port():
		l.twin.SetDest(dest, r.To, m.Local)
	case r.From.Port() != via.Local().Port():
		return // it asked for a port that there is not, and from another an answer would be a lie
	case r.To != m.From:
		via.SetDest(dest, r.To, m.Local)
	}
	l.out.Add(dest, r.Packet, 0)
}

// bind answers a Bind, or has it verified.
func (l *loop) bind(m *host.UDPRead, b []byte) {
	s := l.s
	f, err := wire.ParseBind(b)
	if err != nil {
		s.count.drop(DropMalformed, 1)
		return
	}
	issued, ok := s.cookies.check(f.Cookie, m.From, l.now)
	if !ok {
		dest, text := l.reply(m)
		l.out.Add(dest, wire.AppendChallenge(text, wire.Challenge{Nonce: f.Nonce, Cookie: s.cookies.make(m.From, l.now)}), 0)
		s.count.challenges.Add(1)
		return
	}
	job := bind{frame: b, from: m.From, local: m.Local, socket: l.socket, issued: issued}
	dest, text := l.reply(m)
	if reply, ok := s.renew(text, f, job); ok {
		if reply != nil {
			l.out.Add(dest, reply, 0)
		}
		return
	}
	if !l.spare(m.From.Addr()) {
		s.count.drop(DropBusy, 1)
		return
	}
	job.frame = bytes.Clone(b)
	select {
	case s.slow.waiting <- job:
	default:
		s.count.drop(DropBusy, 1)
	}
}

// reply is where an answer to m goes, and the memory to write it in, until the next flush.
func (l *loop) reply(m *host.UDPRead) (*host.UDPDest, []byte) {
	return l.replyTo(l.socket, m.From, m.Local)
}

func (l *loop) replyTo(via *host.UDPSocket, to netip.AddrPort, local netip.Addr) (*host.UDPDest, []byte) {
	if l.n == maxReplies {
		l.flush()
	}
	dest, text := &l.replies[l.n], l.text[l.n][:0]
	l.n++
	via.SetDest(dest, to, local)
	return dest, text
}

// spare reports whether an address may have another Bind verified in this second.
func (l *loop) spare(ip netip.Addr) bool {
	b := ip.As16()
	if ip.Is6() {
		clear(b[8:])
	}
	x := binary.BigEndian.Uint64(b[:8]) ^ binary.BigEndian.Uint64(b[8:])
	n := &l.perSource[x*0x9E3779B97F4A7C15>>52]
	if *n >= l.most {
		return false
	}
	*n++
	return true
}
