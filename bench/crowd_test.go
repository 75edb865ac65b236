package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"testing"
	"time"

	"weft/engine"
	"weft/engine/segment"
	"weft/host"
	"weft/key"
)

func TestEveryActivePeerOfACrowdGetsItsFlowAndGivesIt(t *testing.T) {
	got, err := Crowd(t.Context(), CrowdConfig{Peers: 40, Active: 8, Flows: 16, Length: time.Second / 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []CrowdRate{got.One.Out, got.One.In, got.Crowd.Out, got.Crowd.In} {
		if r.Bits <= 0 || r.CPU <= 0 || r.Busy <= 0 {
			t.Errorf("a crowd gave %+v", got)
		}
	}
	if got.Configured <= 0 || got.Session <= 0 {
		t.Errorf("a crowd gave %+v", got)
	}
}

// meetEnds starts a far end for each hub. Who closes what is written ends them.
func meetEnds(t *testing.T, awake, wired bool, hubs ...key.NodePublic) (to io.Closer, said crowdHello, ended <-chan error) {
	t.Helper()
	from, meet := io.Pipe()
	hello, w := io.Pipe()
	end := make(chan error, 1)
	go func() { end <- CrowdEnds(t.Context(), len(hubs), awake, wired, from, w) }()
	if err := json.NewDecoder(hello).Decode(&said); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(meet).Encode(crowdMeet{Hubs: hubs}); err != nil {
		t.Fatal(err)
	}
	return meet, said, end
}

// A reader that never waits could not be ended by what ends one that does.
func TestFarEndsThatNeverWaitEnd(t *testing.T) {
	to, _, ended := meetEnds(t, true, false, key.NewPrivate[key.Node]().Public())
	to.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestACrowdThatCannotBeIsRefused(t *testing.T) {
	for _, cfg := range []CrowdConfig{
		{}, {Peers: 1, Flows: 1}, {Peers: 1, Active: 2, Flows: 2}, {Peers: 4, Active: 4, Flows: 3}, {Peers: 1, Active: 1, Flows: 1 << 20},
		{Peers: 1 << 17, Active: 1, Flows: 1},
	} {
		if got, err := Crowd(t.Context(), cfg); err == nil {
			t.Errorf("%+v gave %+v", cfg, got)
		}
	}
}

// What a far end sends piece by piece is what the engine would make of the hub's super-packet, and is put together again.
func TestPacketsOfACrowdAreWholeSegments(t *testing.T) {
	super := crowdPacket{from: crowdFirst, to: 1, source: crowdPort + 7, dest: 1, seq: 1<<32 - crowdPiece, payload: crowdSuper}
	buf := make([]byte, segment.HeaderSize+crowdHeader+crowdSuper)
	n := super.put(buf)
	var split segment.Splitter
	if err := split.Begin(segment.ParseHeader(buf), buf[segment.HeaderSize:n]); err != nil {
		t.Fatal(err)
	}
	merge := segment.NewMerger(0)
	for i := range crowdPieces {
		p := super
		p.payload, p.seq = crowdPiece, super.seq+uint32(i)*crowdPiece
		piece := make([]byte, crowdHeader+crowdPiece)
		p.whole(piece)
		got := split.Next()
		copy(piece[4:6], got[4:6])   // the splitter numbers pieces,
		copy(piece[10:12], got[10:]) // which is in the header's checksum
		if !bytes.Equal(got, piece) {
			t.Fatalf("piece %d is %x, from the far end %x", i, got[:crowdHeader], piece[:crowdHeader])
		}
		p.whole(piece)
		if !merge.Add(copy(merge.Place(len(piece))[:len(piece)], piece)) {
			t.Fatalf("piece %d is not merged", i)
		}
	}
	got, ok := parseCrowdPacket(merge.Take()[segment.HeaderSize:])
	if want := (crowdPacket{source: super.source, dest: super.dest, seq: super.seq, payload: crowdSuper}); !ok || got != want {
		t.Errorf("put together they are %+v", got)
	}
}

// What is lost is asked for, or sent, again.
func TestAFlowOfACrowdOutlivesALoss(t *testing.T) {
	for _, h := range []heading{out, in} {
		d := newCrowdDevice(1, crowdFirst, 1)
		d.heading.Store(int32(h))
		d.active.Store(1)
		d.limit.Store(1)
		buf := make([]byte, engine.ReadSize)
		read := func() crowdPacket {
			n, err := d.TryRead(buf)
			if err != nil || n == 0 {
				t.Fatalf("heading %d: %d bytes, %v", h, n, err)
			}
			p, _ := parseCrowdPacket(buf[segment.HeaderSize:n])
			return p
		}
		first := read()
		if n, _ := d.TryRead(buf); n != 0 {
			t.Errorf("heading %d: two super-packets of a flow are under way", h)
		}
		d.flows[h][0].since = time.Now().Add(-crowdPatience)
		if again := read(); again != first || d.lost.Load() != 1 {
			t.Errorf("heading %d: after a loss %+v, in place of %+v", h, again, first)
		}
		// What came of it all: the next.
		answer := crowdPacket{from: crowdFirst, to: 1, source: crowdPort, dest: 1}
		if h == out {
			answer.ack = crowdSuper
		} else {
			answer.payload = crowdSuper
		}
		n := answer.put(buf)
		if err := d.Write(buf[:n]); err != nil {
			t.Fatal(err)
		}
		if next := read(); next.seq+next.ack != crowdSuper || d.arrived(h) != crowdSuper {
			t.Errorf("heading %d: %d bytes arrived, and then %+v", h, d.arrived(h), next)
		}
	}
}

func TestADeviceOfACrowdRefusesWhatIsOfNoFlow(t *testing.T) {
	d := newCrowdDevice(1, crowdFirst, 2)
	buf := make([]byte, segment.HeaderSize+crowdHeader)
	for _, port := range []uint16{0, crowdPort - 1, crowdPort + 2} {
		p := crowdPacket{source: port}
		if p.put(buf); d.Write(buf) == nil {
			t.Errorf("a packet of port %d was taken", port)
		}
	}
	for n := range len(buf) {
		if d.Write(buf[:n]) == nil {
			t.Errorf("%d bytes were taken", n)
		}
	}
}

// A hub finds them there, and flows go both ways.
func TestFarEndsCanBeAtTheEndOfAnInterface(t *testing.T) {
	if err := host.CheckTUN(); err != nil {
		t.Skip("there can be no interface: ", err)
	}
	hub := key.NewPrivate[key.Node]()
	to, said, ended := meetEnds(t, false, true, hub.Public(), hub.Public())
	device := newCrowdDevice(1, crowdFirst, 2)
	e, err := engine.New(engine.Config{Key: hub, Self: device.hub, Device: device, Handler: deaf{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Up(); err != nil {
		t.Fatal(err)
	}
	h := &crowdHub{Engine: e, device: device, configured: 2, active: 2, flows: 2}
	if _, _, err := h.remember(t.Context(), &said); err != nil {
		t.Fatal(err)
	}
	for _, x := range []heading{out, in} {
		if err := h.turn(t.Context(), x, false); err != nil {
			t.Fatal(err)
		}
		if got, err := h.rate(x); err != nil || got.Lost > 0 {
			t.Errorf("heading %d: %+v, %v", x, got, err)
		}
	}
	to.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
