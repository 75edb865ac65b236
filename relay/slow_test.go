package relay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"weft"
)

// One node stops reading. The others' datagrams go on, what is new for it is kept and what is old is dropped,
// and the relay's memory for it stays bounded.
func TestASlowReaderStallsNobodyElse(t *testing.T) {
	const queue = 256 << 10
	w := newRelay(t, func(c *Config) { c.Limits = Limits{QueueBytes: queue, QueueAge: time.Hour} }).serveHTTP()
	sender, quick := w.member(1).stream(), w.member(2).stream()

	// The slow one: a stream whose Deliver does not return.
	m := w.member(3)
	hold, first := make(chan struct{}), make(chan struct{}, 1)
	slowGot := make(chan string, 1<<16)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	slow, err := DialStream(ctx, StreamConfig{
		Relay: w.desc, NodeKey: m.key, Ticket: func() []byte { return m.ticket }, Logger: discard,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				c.(*net.TCPConn).SetReadBuffer(16 << 10)
			}
			return c, err
		},
		Deliver: func(_ weft.NodeID, datagrams [][]byte) {
			select {
			case first <- struct{}{}:
			default:
			}
			<-hold
			for _, d := range datagrams {
				slowGot <- string(d[:8])
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()

	const count, size = 6000, 1400
	payload := make([]byte, size)
	for i := range count {
		binary.BigEndian.PutUint64(payload, uint64(i))
		for sender.out.waitingBytes() > clientQueue/2 { // not faster than the relay takes it
			<-time.After(100 * time.Microsecond)
		}
		if err := sender.SendTo(3, [][]byte{payload}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			sender.send(2, fmt.Sprint(i))
		}
	}
	<-first
	for i := 0; i < count; i += 10 {
		quick.want(1, fmt.Sprint(i))
	}
	if rtt, err := quick.Ping(t.Context()); err != nil || rtt > time.Second {
		t.Errorf("while one stands still another's ping takes %v (%v)", rtt, err)
	}
	node := w.relay.nodes.get(nodeName{testNetwork, 3})
	if n := node.stream.Load().out.waitingBytes(); n > queue || n < queue/2 {
		t.Errorf("%d bytes wait for the slow one", n)
	}
	dropped := w.relay.Stats().Drops[DropQueue]
	if dropped < 100 {
		t.Errorf("only %d were dropped: the slow one was not slow", dropped)
	}
	close(hold)
	// It gets the newest, in order.
	last := -1
	for last != count-1 {
		select {
		case s := <-slowGot:
			i := int(binary.BigEndian.Uint64([]byte(s)))
			if i <= last {
				t.Fatalf("datagram %d comes behind %d", i, last)
			}
			last = i
		case <-time.After(3 * time.Second):
			t.Fatalf("the newest datagram does not come: the last is %d", last)
		}
	}
}

func (q *queue) waitingBytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// A node stops reading while others send, and goes on. Of what is old by then it gets what no buffer of ours held
// any more: one write, and what the kernel was let have. Without bounds that would be megabytes, which a slow link
// makes seconds of.
func TestAReaderThatComesBackGetsLittleThatIsStale(t *testing.T) {
	const age, size = 100 * time.Millisecond, 1000
	w := newRelay(t, func(c *Config) { c.Limits = Limits{QueueBytes: 16 << 20, QueueAge: age} }).serveHTTP()
	sender, m := w.member(1).stream(), w.member(2)
	hold, marked := make(chan struct{}), make(chan int, 1000)
	stale := 0
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	slow, err := DialStream(ctx, StreamConfig{
		Relay: w.desc, NodeKey: m.key, Ticket: func() []byte { return m.ticket }, Logger: discard,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				c.(*net.TCPConn).SetReadBuffer(32 << 10)
			}
			return c, err
		},
		Deliver: func(_ weft.NodeID, datagrams [][]byte) {
			<-hold
			for _, d := range datagrams {
				if len(d) == size {
					stale += len(d)
				} else {
					marked <- stale
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	payload := make([]byte, size)
	const count = 12_000
	for range count {
		for sender.out.waitingBytes() > clientQueue/2 { // not faster than the relay takes it
			<-time.After(100 * time.Microsecond)
		}
		if err := sender.SendTo(2, [][]byte{payload}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all is at the relay", func() bool { return sender.out.waitingBytes() == 0 })
	<-time.After(2 * age)
	close(hold)
	tick := time.NewTicker(age / 2)
	defer tick.Stop()
	for n := -1; n < 0; {
		sender.send(2, "the mark") // which may grow old too, on a busy machine
		select {
		case n = <-marked:
			if n > 512<<10 {
				t.Errorf("%d KiB of %d are stale", n>>10, count*size>>10)
			}
			t.Logf("%d KiB of %d are stale", n>>10, count*size>>10)
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("what is fresh does not come")
		}
	}
	if n := w.relay.Stats().Drops[DropAge]; n < count/2 {
		t.Errorf("%d of %d were dropped for their age", n, count)
	}
}
