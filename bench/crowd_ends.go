package bench

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/wireguard"
)

// The far ends of crowds are machines of their own in the world, and only hubs are to be measured. So all of them are one wire and one
// thread, in a process of its own, which does the least that a far end must: it opens and seals under the session of each, and
// answers. Packets cost it the same whether they are of one end or of fifty: it reads as many at once, and has no queue, no device
// and no thread for each of them. They never wait (see awakeConn). Told apart they are by their addresses, which are the wire's all the same: the hub sends to
// fifty addresses, and gets packets from fifty.

// crowdAt is the underlay address of a peer, by the first one's and its number.
func crowdAt(first netip.Addr, i int, port uint16) netip.AddrPort {
	a := first.As4()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{a[0], a[1], byte(i >> 8), byte(i)}), port)
}

// crowdHello is what far ends say when they are there.
type crowdHello struct {
	First netip.Addr       `json:"first"` // address
	Port  uint16           `json:"port"`
	Keys  []key.NodePublic `json:"keys"`
}

// crowdMeet is what the hubs' process answers: for each far end the key of its hub.
type crowdMeet struct {
	Hubs []key.NodePublic `json:"hubs"`
}

// CrowdEnds are that many far ends, for hubs that are told of them by what is written, and tell of themselves by what is read, a line each. They
// end when there is no more to read.
// Awake has them never wait, where they have a core alone. Wired has them be at the end of an interface (see crowdTUN), awake.
func CrowdEnds(ctx context.Context, ends int, awake, wired bool, from io.Reader, to io.Writer) error {
	x := &crowdEnds{sessions: map[uint32]*crowdSession{}, plain: make([]byte, crowdHeader+crowdPiece)}
	hello := crowdHello{First: netip.AddrFrom4([4]byte{127, 1})}
	if wired {
		wire, err := openCrowdTUN()
		if err != nil {
			return err
		}
		x.wire, hello.First, hello.Port = wire, netip.MustParsePrefix(crowdWireAt).Addr(), crowdWirePort
	} else {
		wire, port, err := openCrowdSockets(awake)
		if err != nil {
			return err
		}
		x.wire, hello.Port = wire, port
	}
	defer x.wire.Close()
	x.first = hello.First
	for range ends {
		k := key.NewPrivate[key.Node]()
		hello.Keys = append(hello.Keys, k.Public())
		x.ends = append(x.ends, &crowdEnd{id: crowdFirst + weft.NodeID(len(x.ends)), device: wireguard.New(wireguard.Config{
			Private: wireguard.Key(k.RevealBytes()), Rand: func(b []byte) { rand.Read(b) },
		})})
	}
	if err := json.NewEncoder(to).Encode(hello); err != nil {
		return err
	}
	var meet crowdMeet
	lines := json.NewDecoder(from)
	if err := lines.Decode(&meet); err != nil {
		return fmt.Errorf("far ends of a crowd: the hubs did not say who they are: %w", err)
	}
	if len(meet.Hubs) != ends {
		return fmt.Errorf("far ends of a crowd: %d of them have %d hubs", ends, len(meet.Hubs))
	}
	for i, end := range x.ends {
		if _, err := end.device.AddPeer(wireguard.PeerConfig{Public: wireguard.Key(meet.Hubs[i].Bytes())}); err != nil {
			return err
		}
	}
	context.AfterFunc(ctx, func() { x.wire.Close() })
	go func() {
		_, _ = io.Copy(io.Discard, from)
		x.wire.Close()
	}()
	return x.run()
}

// openCrowdSockets opens a socket for far ends on loopback, and says its port.
func openCrowdSockets(awake bool) (_ *crowdSockets, port uint16, err error) {
	conns, err := host.UDPListen("udp4", "0.0.0.0:0", 1)
	if err != nil {
		return nil, 0, err
	}
	port = conns[0].LocalAddr().(*net.UDPAddr).AddrPort().Port()
	conn, err := host.Unpolled(conns[0])
	if err != nil {
		conns[0].Close()
		return nil, 0, err
	}
	if awake {
		conn = &awakeConn{DatagramConn: conn}
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	const receive, send = 7 << 20, 1 << 20 // as the engine's
	if _, _, err := host.SizeUDPBuffers(conn, receive, send); err != nil {
		return nil, 0, err
	}
	socket, err := host.NewUDPSocket(conn)
	if err != nil {
		return nil, 0, err
	}
	w := &crowdSockets{conn: conn, socket: socket, reader: host.NewUDPReader(socket), writer: host.NewUDPWriter(), place: make([]byte, 0, crowdPlace)}
	w.writer.Patient = true
	return w, port, nil
}

// crowdPlace is the room for what is sealed before it is sent, in bytes: the engine's.
const crowdPlace = 128 << 10

// crowdEnds are far ends; one goroutine's.
type crowdEnds struct {
	wire     crowdWire
	first    netip.Addr // end's
	ends     []*crowdEnd
	sessions map[uint32]*crowdSession         // by our index
	flows    [crowdHubs * crowdFlows]struct { // of heading out
		got, acked uint64
	}
	burst int    // bytes since the wire was flushed
	plain []byte // a segment of zeros
	out   wireguard.Actions
}

// A crowdEnd is one of them.
type crowdEnd struct {
	id      weft.NodeID
	device  *wireguard.Device
	current *crowdSession
	to      host.UDPDest   // by a socket, the hub, from this end's address
	hub     netip.AddrPort // by an interface, the hub,
	at      netip.Addr     // and this end
	known   bool           // they are
}

type crowdSession struct {
	*wireguard.Session
	end    *crowdEnd
	next   uint64 // the counter of the next packet
	window wireguard.Window
}

func (x *crowdEnds) run() error {
	for {
		reads, err := x.wire.Read()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("far ends of a crowd: %w", err)
		}
		for i := range reads {
			x.read(&reads[i])
		}
		x.flush()
	}
}

func (x *crowdEnds) flush() {
	x.wire.Flush()
	x.burst = 0
}

// read takes a message: a run of datagrams.
func (x *crowdEnds) read(m *host.UDPRead) {
	var s *crowdSession
	for data := m.Data; len(data) > 0; {
		b := data[:min(len(data), m.Segment)]
		data = data[len(b):]
		index, counter, ok := wireguard.Transport(b)
		if !ok {
			x.handshake(m, b)
			continue
		}
		if s == nil || s.Local != index {
			if s = x.sessions[index]; s == nil {
				continue
			}
		}
		packet, ok := s.Open(b[wireguard.HeaderSize:wireguard.HeaderSize], b)
		if !ok || !s.window.Take(counter) {
			continue
		}
		if s.end.current != s {
			s.end.device.Confirm(time.Now(), s.Session, &x.out)
			x.change(s.end)
		}
		if p, ok := parseCrowdPacket(packet); ok && int(p.dest) >= crowdPort && int(p.dest) < crowdPort+len(x.flows) {
			x.packet(s.end, &p)
		}
	}
}

// handshake answers a handshake message. The hub begins them all, so nothing is ever due by itself.
func (x *crowdEnds) handshake(m *host.UDPRead, b []byte) {
	i := x.number(m.Local)
	if i < 0 || i >= len(x.ends) {
		return
	}
	end := x.ends[i]
	if end.device.Handle(time.Now(), m.From, b, false, &x.out) != nil {
		return
	}
	if !end.known {
		x.wire.Meet(end, m)
		end.known = true
	}
	x.change(end)
	for _, d := range x.out.Send {
		x.wire.Add(end, append(x.wire.Room(end, len(d.Message)), d.Message...), len(d.Message))
	}
}

// number is the number of the peer with an underlay address; negative: it is none's.
func (x *crowdEnds) number(a netip.Addr) int {
	if four, first := a.As4(), x.first.As4(); four[0] == first[0] && four[1] == first[1] {
		return int(four[2])<<8 | int(four[3])
	}
	return -1
}

// change notes which sessions there are.
func (x *crowdEnds) change(end *crowdEnd) {
	for _, c := range x.out.Changes {
		switch c.What {
		case wireguard.Began:
			x.sessions[c.Session.Local] = &crowdSession{Session: c.Session, end: end}
		case wireguard.Current:
			end.current = x.sessions[c.Session.Local]
		case wireguard.Ended:
			delete(x.sessions, c.Session.Local)
		}
	}
}

// packet answers a packet of a flow: a super-packet that came with an acknowledgment, and an acknowledgment with a super-packet.
func (x *crowdEnds) packet(end *crowdEnd, p *crowdPacket) {
	answer := crowdPacket{from: end.id, to: weft.NodeID(p.source), source: p.dest, dest: p.source}
	if p.payload > 0 {
		f := &x.flows[p.dest-crowdPort]
		if f.got += uint64(p.payload); f.got-f.acked >= crowdSuper {
			f.acked = f.got
			answer.ack = uint32(f.got)
			x.send(end, &answer)
		}
		return
	}
	answer.payload = crowdPiece
	// A far end that is a machine begins a burst with a packet and not in the midst of one: the last that finds room goes whole.
	if whole := crowdPieces * (wireguard.Padded(crowdHeader+crowdPiece, len(x.plain)) + wireguard.Overhead); crowdPlace-x.burst < whole {
		x.flush()
	}
	for i := range crowdPieces {
		answer.seq = p.ack + uint32(i)*crowdPiece
		x.send(end, &answer)
	}
}

// send seals a packet.
func (x *crowdEnds) send(end *crowdEnd, p *crowdPacket) {
	n, s := wireguard.Padded(crowdHeader+p.payload, len(x.plain)), end.current
	p.whole(x.plain)
	sealed := n + wireguard.Overhead
	x.wire.Add(end, s.Seal(x.wire.Room(end, sealed), s.next, x.plain[:n]), sealed)
	x.burst += sealed
	s.next++
}

// startCrowdEnds starts far ends in a process of their own, on a core alone unless that is negative. Who closes what is written ends them.
func startCrowdEnds(ctx context.Context, binary string, ends, core int, wired bool) (to io.WriteCloser, from io.Reader, wait func() error, err error) {
	args := []string{binary, "bench", "crowd-ends", "--ends", strconv.Itoa(ends)}
	if core >= 0 {
		args = append([]string{"taskset", "--cpu-list", strconv.Itoa(core)}, append(args, "--awake")...)
	}
	if wired {
		args = append(args, "--wired")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	if to, err = cmd.StdinPipe(); err != nil {
		return nil, nil, nil, err
	}
	if from, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("the far ends of a crowd (taskset is of apt-get install util-linux): %w", err)
	}
	return to, from, cmd.Wait, nil
}

// inCrowd has far ends in this process: for tests.
func inCrowd(ctx context.Context, ends int) (to io.WriteCloser, from io.Reader, wait func() error) {
	r, to := io.Pipe()
	from, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := CrowdEnds(ctx, ends, false, false, r, w)
		w.CloseWithError(err)
		r.CloseWithError(err)
		ended <- err
	}()
	return to, from, func() error { return <-ended }
}
