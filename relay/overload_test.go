package relay

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"weft"
	"weft/host"
	"weft/wire"
)

// Who adds to a queue learns that it is ahead of the one who writes, and only then.
func TestAQueueTellsThatItsWriterIsBehind(t *testing.T) {
	q := newQueue(1<<20, time.Hour, func() time.Duration { return 0 }, func(Drop, int) { t.Error("something was dropped") })
	frame := append(wire.AppendStreamData(nil, 2, 1452), make([]byte, 1452)...)
	run := bytes.Repeat(frame, 11)
	total := 0
	for total+len(run) <= crowd {
		if q.frames(run) {
			t.Fatalf("%d bytes crowd it", total+len(run))
		}
		total += len(run)
	}
	if !q.frames(run) {
		t.Errorf("%d bytes do not crowd it", total+len(run))
	}
	if !q.datagrams(3, append(wire.AppendData(nil, 2), make([]byte, 1452)...), 1460) {
		t.Error("a datagram more does not crowd it")
	}
	for {
		_, c, _ := q.take(nil)
		if c == nil {
			break
		}
		chunks.Put(c)
	}
	if q.frames(run) {
		t.Error("it is crowded when it was emptied")
	}
}

// tap always has more to read, and takes whatever is written: a node, or a kernel, that is ahead of the relay.
type tap struct {
	net.Conn
	frames []byte // over and over
	at     int
	left   int // bytes
}

func (c *tap) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), c.left)], c.frames[c.at:])
	c.at, c.left = (c.at+n)%len(c.frames), c.left-n
	return n, nil
}
func (c *tap) Write(b []byte) (int, error)      { return len(b), nil }
func (c *tap) Close() error                     { return nil }
func (c *tap) SetWriteDeadline(time.Time) error { return nil }

// More comes by a stream than one processor can forward. What the relay reads it writes, too, and does not throw away
// what it spent its time on: it reads less, and the sender's TCP slows down.
func TestARelayReadsNoMoreThanItCanWrite(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	h := newHotPath(t)
	frame := append(wire.AppendStreamData(nil, 3, 1452), make([]byte, 1452)...)
	const datagrams = 220_000
	from, to := &tap{frames: bytes.Repeat(frame, 11), left: datagrams * len(frame)}, &tap{}
	receiver := h.w.relay.nodes.get(nodeName{testNetwork, 3}).stream.Load()
	h.stream.conn, receiver.conn = from, to
	count := 0
	written := make(chan error, 1)
	go func() {
		written <- receiver.out.writer(to, func(frames, _ int) { count += frames }, func() error { return nil })
	}()
	if err := h.stream.read(); err != io.EOF {
		t.Fatal(err)
	}
	for receiver.out.waitingBytes() > 0 {
		runtime.Gosched()
	}
	receiver.out.close()
	<-written
	if dropped := h.w.relay.Stats().Drops; len(dropped) > 0 || count != datagrams {
		t.Errorf("%d of %d datagrams are written, dropped %v", count, datagrams, dropped)
	}
}

// A port has several sockets, and the kernel decides which a node's datagrams come to. Whichever it is, nodes reach
// each other and are answered from the port's address.
func TestNodesAtDifferentSocketsOfAPortReachEachOther(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	const nodes = 24 // all by chance at one of two sockets: one in eight million
	var bound []*udpNode
	at := map[*host.UDPSocket]int{}
	for i := range nodes {
		n := w.member(weft.NodeID(i + 1)).udp().bind()
		bound = append(bound, n)
		at[w.relay.nodes.get(nodeName{testNetwork, n.id}).udp.Load().socket]++
	}
	if len(at) != 2 {
		t.Fatalf("nodes are at %d sockets", len(at))
	}
	for i, n := range bound {
		to := bound[(i+1)%nodes]
		n.send(to.id, "to the next")
		to.want(n.id, "to the next")
	}
}
