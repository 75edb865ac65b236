package engine

import (
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"weft"
	"weft/key"
)

// wide is a device of several queues, each a device of its own.
type wide struct{ of []*memTUN }

func (w *wide) Name() string       { return "wide" }
func (w *wide) Offloads() Offloads { return Offloads{TCP: true, UDP: true} }

func (w *wide) Queues() (queues []Queue) {
	for _, m := range w.of {
		queues = append(queues, m)
	}
	return queues
}

func (w *wide) Close() error {
	for _, m := range w.of {
		m.Close()
	}
	return nil
}

func TestQueuesOfADeviceShareTheirPeersSessions(t *testing.T) {
	const queues, each = 4, 500
	b := start(t, 2)
	device := &wide{}
	for range queues {
		device.of = append(device.of, newMemTUN())
	}
	a := &node{id: 1, key: key.NewPrivate[key.Node](), seen: &recorder{}}
	var err error
	a.Engine, err = New(Config{Key: a.key, Self: 1, Device: device, Handler: a.seen, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	mustSetPeers(t, a, b.peer())
	mustSetPeers(t, b, a.peer())
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	a.Up()
	// One goes ahead, since what waits for the handshake is bounded.
	first := packet(addrOf(1), addrOf(2), 1, 100)
	device.of[0].out <- first
	select {
	case <-b.tun.in:
	case <-time.After(patience):
		t.Fatal("the first packet did not arrive")
	}
	for i, m := range device.of {
		go func() {
			for seq := range uint32(each) {
				select {
				case m.out <- marked(packet(addrOf(1), addrOf(2), uint32(i)*each+seq, 300)):
				case <-m.closed:
					return
				}
			}
		}()
	}
	seen := make(map[uint32]int)
	for len(seen) < queues*each {
		select {
		case p := <-b.tun.in:
			seen[binary.BigEndian.Uint32(p[20:])]++
		case <-time.After(patience):
			t.Fatalf("%d of %d arrived; drops %+v, %+v", len(seen), queues*each, a.Drops(), b.Drops())
		}
	}
	for seq, n := range seen {
		if n != 1 {
			t.Fatalf("packet %d arrived %d times", seq, n)
		}
	}
	// What comes back is spread over the queues, a peer to each, and not lost.
	back := packet(addrOf(2), addrOf(1), 7, 300)
	b.tun.out <- back
	at := device.of[int(b.id)%queues]
	select {
	case got := <-at.in:
		if string(got) != string(back) {
			t.Fatalf("got %x", got)
		}
	case <-time.After(patience):
		t.Fatal("nothing came back")
	}
}
