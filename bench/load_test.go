package bench

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"math"
	"os"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
)

// The file is what iperf3 3.12 printed of 100 Mbit/s of datagrams, of which a rule dropped 7 in 10 at random, for two
// seconds after one that is left out. It says there that more were lost than were sent.
func TestOfDatagramsThoseCountThatArrived(t *testing.T) {
	b, err := os.ReadFile("testdata/iperf3-udp-lossy.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := parseFlow(string(b))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(f.bits-30.1e6) > 0.1e6 || math.Abs(f.sent-100e6) > 0.1e6 || math.Abs(f.lost()-0.699) > 0.001 || math.Abs(f.bytes-37.5e6) > 0.1e6 {
		t.Errorf("read %+v, %v lost", f, f.lost())
	}
}

func TestABenchmarkKnowsWhetherItRunsInRealTime(t *testing.T) {
	// As Linux 6.18 writes them for `chrt -r 1`, `chrt -f 1` and neither, without the end; the first with a name that looks like fields.
	for stat, want := range map[string]bool{
		"6897 (a) 0 1 2) R 6851 6851 6863 0 -1 4194560 176 0 1 0 0 0 0 0 -2 0 1 0 7233347 3133440 382 18446744073709551615 93855789314048 93855789333929 140725223342432 0 0 0 0 0 0 0 0 0 17 0 1 2 0 0 0 0": true,
		"6898 (cat) R 6851 6851 6863 0 -1 4194560 176 0 1 0 0 0 0 0 -2 0 1 0 7233347 3133440 382 18446744073709551615 93855789314048 93855789333929 140725223342432 0 0 0 0 0 0 0 0 0 17 0 1 1 0 0 0 0":      true,
		"6899 (cat) R 6851 6851 6863 0 -1 4194560 176 0 1 0 0 0 0 0 20 0 1 0 7233347 3133440 382 18446744073709551615 93855789314048 93855789333929 140725223342432 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0":      false,
		"7 (cat) R 6": false, "": false,
	} {
		if got := inRealTime(stat); got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
}

func TestWhatIsNoResultIsNone(t *testing.T) {
	for _, out := range []string{
		"", "{}", `{"error":"unable to connect to server"}`, `{"intervals":[{"sum":{"bytes":7}}],"end":{}}`,
		`{"end":{"sum_sent":{"bits_per_second":1},"sum_received":{"bits_per_second":1}}}`,
	} {
		if f, err := parseFlow(out); err == nil {
			t.Errorf("%q is read as %+v", out, f)
		}
	}
	if e, err := parsePing("5 packets transmitted, 0 received", 5); err == nil {
		t.Errorf("no echo is read as %+v", e)
	}
}

func TestEchoesAreReadOneByOneAndTheLostCounted(t *testing.T) {
	const out = `PING 10.99.0.2 (10.99.0.2) 56(84) bytes of data.
64 bytes from 10.99.0.2: icmp_seq=1 ttl=64 time=0.313 ms
64 bytes from 10.99.0.2: icmp_seq=3 ttl=64 time=12.4 ms
64 bytes from 10.99.0.2: icmp_seq=2 ttl=64 time=104 ms
64 bytes from 10.99.0.2: icmp_seq=2 ttl=64 time=105 ms (DUP!)

--- 10.99.0.2 ping statistics ---
5 packets transmitted, 3 received, +1 duplicates, 40% packet loss, time 812ms
rtt min/avg/max/mdev = 0.313/38.904/104.000/46.237 ms
`
	e, err := parsePing(out, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.rtts) != 3 || e.rtts[0] != 0.313 || e.rtts[1] != 12.4 || e.rtts[2] != 104 || e.lost != 2 {
		t.Errorf("read %+v", e)
	}
}

func TestWorkOfTheWholeMachineIsCountedAndRestIsNot(t *testing.T) {
	const stat = "cpu  100 1000 20 30000 4000 3 7 50000 0 600000\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
	if m, err := parseMachine(stat); err != nil || m != (machineTime{busy: 1300 * time.Millisecond, nice: 10 * time.Second, stolen: 500 * time.Second}) {
		t.Errorf("read %+v, %v", m, err)
	}
	for _, bad := range []string{"", "cpu", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7\n", "cpu 1 2 x 4 5 6 7 8\n"} {
		if m, err := parseMachine(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, m)
		}
	}
	if b, err := parsePeak("Name:\tweft\nVmPeak:\t  9 kB\nVmHWM:\t   20716 kB\nVmRSS:\t 1 kB\n"); err != nil || b != 20716*1024 {
		t.Errorf("peak is %v, %v", b, err)
	}
	if b, err := parsePeak("Name:\tweft\n"); err == nil {
		t.Errorf("peak is %v", b)
	}
}

func TestOthersWorkIsToldFromOurs(t *testing.T) {
	before := meter{began: time.Unix(1, 0), machineTime: machineTime{busy: 10 * time.Second, nice: time.Second, stolen: time.Second}, ours: 5 * time.Second}
	after := meter{began: time.Unix(3, 0), machineTime: machineTime{busy: 13 * time.Second, nice: 2 * time.Second, stolen: 1500 * time.Millisecond}, ours: 7 * time.Second}
	took, busy, others := after.since(before)
	if took != 2*time.Second || busy != 3*time.Second || others != 2500*time.Millisecond {
		t.Errorf("in %v %v of work, %v of them others'", took, busy, others)
	}
	// What this process does is ours.
	s := &site{}
	m, err := s.meter()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		sink++
	}
	n, err := s.meter()
	if err != nil {
		t.Fatal(err)
	}
	if ours := n.ours - m.ours; ours < 20*time.Millisecond {
		t.Errorf("of a fifth of a second of work %v are ours", ours)
	}
}

// spin has this process do something for a while, and returns the profile.
func spin(t *testing.T, what func()) usage {
	t.Helper()
	var out bytes.Buffer
	if err := pprof.StartCPUProfile(&out); err != nil {
		t.Skip("a profile is being taken already: ", err)
	}
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
		what()
	}
	pprof.StopCPUProfile()
	u, err := profileUsage(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if u.total < int64(100*time.Millisecond) {
		t.Skipf("the profile has %v in it: there is no timer here", time.Duration(u.total))
	}
	return u
}

var sink byte

func TestTheCipherIsFoundInAProfileAndNothingElseIsTakenForIt(t *testing.T) {
	aead, err := chacha20poly1305.New(make([]byte, chacha20poly1305.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	nonce, buf := make([]byte, aead.NonceSize()), make([]byte, 1420)
	sealed, opened := make([]byte, 0, 2000), make([]byte, 0, 2000) // a collector's work would be nobody's
	rand.Read(buf)
	u := spin(t, func() {
		for range 100 {
			sealed = aead.Seal(sealed[:0], nonce, buf, nil)
			if opened, err = aead.Open(opened[:0], nonce, sealed, nil); err != nil || len(opened) != len(buf) {
				t.Fatal(err)
			}
		}
	})
	if share := float64(u.cipher) / float64(u.total); share < 0.3 { // the race detector has its part
		t.Errorf("of sealing and opening %.2f is the cipher: %+v", share, u)
	}
	u = spin(t, func() {
		for i := range 1 << 16 {
			sink += byte(i) ^ buf[i%len(buf)]
		}
	})
	if u.cipher > u.total/20 || u.kernel > u.total/4 {
		t.Errorf("adding up is taken for the cipher or the kernel: %+v", u)
	}
	u = spin(t, func() {
		for range 1000 {
			syscall.Getppid()
		}
	})
	if share := float64(u.kernel) / float64(u.total); share < 0.4 || u.cipher > u.total/20 {
		t.Errorf("of system calls %.2f is the kernel: %+v", share, u)
	}
}

func FuzzProfile(f *testing.F) {
	var real bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&real, 0)
	z, err := gzip.NewReader(&real)
	if err != nil {
		f.Fatal(err)
	}
	var text bytes.Buffer
	text.ReadFrom(z)
	f.Add(text.Bytes())
	f.Add([]byte{0x12, 0x04, 0x0a, 0x00, 0x10, 0x07}) // a sample with a value and no stack
	f.Fuzz(func(t *testing.T, message []byte) {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(message)
		w.Close()
		profileUsage(b.Bytes()) // must come back
	})
}

func FuzzTools(f *testing.F) {
	f.Add(`{"end":{"sum_sent":{"bits_per_second":1}}}`)
	f.Add("64 bytes from 10.99.0.2: icmp_seq=1 ttl=64 time=0.313 ms")
	f.Fuzz(func(t *testing.T, out string) {
		if c, err := parseFlow(out); err == nil && (c.bits <= 0 || c.lost() < 0 || c.lost() > 1) {
			t.Errorf("read %+v", c)
		}
		if e, err := parsePing(out, 3); err == nil && (len(e.rtts) == 0 || e.lost < 0) {
			t.Errorf("read %+v", e)
		}
		parseMachine(out)
		inRealTime(out)
		parsePeak(strings.ToUpper(out))
	})
}
