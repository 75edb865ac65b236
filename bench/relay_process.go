package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/key"
	"weft/lab/netns"
	"weft/stream"
)

// relayProcess is a relay that runs.
type relayProcess struct {
	*netns.Process
	addr    string   // derper's
	network *network // a weft relay's
}

func (p *relayProcess) stop() error { return p.Kill() }

// RelayReady is what `weft bench relayd` prints when it serves.
type RelayReady struct {
	Key         key.RelayPublic
	URL         string
	UDP         netip.AddrPort
	Fingerprint []byte
}

// program is a command line, on the last core alone if it is to be narrow: so that a runtime sees one core.
func relayProgram(ctx context.Context, narrow bool, args ...string) []string {
	if narrow {
		args = append([]string{"taskset", "--cpu-list", strconv.Itoa(lastCPU())}, args...)
	}
	return args
}

func (r *relayRun) startWeft(ctx context.Context, narrow bool) (*relayProcess, error) {
	n := &network{signing: key.NewSigning()}
	args := relayProgram(ctx, narrow, r.Binary, "bench", "relayd")
	cmd := netns.Command(ctx, args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(n.signing.Public().String() + "\n")
	p, err := netns.Start("weft bench relayd", r.logOf("weft"), cmd)
	if err != nil {
		return nil, err
	}
	ready := RelayReady{}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := netns.WaitFor(wait, "weft's relay", func() error {
		if err := p.Err(); err != nil {
			return err
		}
		line, _, whole := strings.Cut(p.Log(), "\n")
		if !whole {
			return errors.New("it is not ready")
		}
		return json.Unmarshal([]byte(line), &ready)
	}); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	n.relay = weft.Relay{ID: 1, Name: "bench", Key: ready.Key, URL: ready.URL, UDP: []netip.AddrPort{ready.UDP}, Fingerprint: ready.Fingerprint}
	return &relayProcess{Process: p, network: n}, nil
}

func (r *relayRun) startDerper(ctx context.Context, narrow bool) (*relayProcess, error) {
	const host = "127.0.0.1"
	if _, _, err := stream.LoadOrCreateCertificate(filepath.Join(r.dir, host+".crt"), filepath.Join(r.dir, host+".key"), []string{host}); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		return nil, fmt.Errorf("looking for a free port: %w", err)
	}
	addr := l.Addr().String()
	l.Close()
	args := relayProgram(ctx, narrow, r.Derper, "-a", addr, "-c", filepath.Join(r.dir, "derper.json"),
		"-certmode", "manual", "-certdir", r.dir, "-hostname", host, "-http-port", "-1", "-stun=false")
	p, err := netns.Start("derper", r.logOf("derper"), netns.Command(ctx, args[0], args[1:]...))
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := netns.WaitFor(wait, "derper", func() error {
		if err := p.Err(); err != nil {
			return err
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return &relayProcess{Process: p, addr: addr}, nil
}

// rivals is how many programs that never rest a narrow relay shares its core with.
const rivals = 3

// narrowDown makes this process leave the last core alone, and starts the relay's rivals there, as the relay was
// started; the relay then has a part of a core, and its nodes can offer far more than it can take. The function
// that is returned undoes it.
func narrowDown(ctx context.Context, relay int) (undo func() error, err error) {
	if lastCPU() == 0 {
		return nil, errors.New("a relay can be overloaded where there are two cores or more, and here is one")
	}
	own := strconv.Itoa(os.Getpid())
	set := func(list string) error {
		cmd := netns.Command(ctx, "taskset", "--all-tasks", "--cpu-list", "--pid", list, own)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("taskset is needed (apt-get install util-linux): %w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	}
	var started []*netns.Process
	undo = func() error {
		for _, p := range started {
			err = errors.Join(err, p.Kill())
		}
		return errors.Join(err, set("0-"+strconv.Itoa(lastCPU())))
	}
	if err := set("0-" + strconv.Itoa(lastCPU()-1)); err != nil {
		return nil, err
	}
	for range rivals {
		args := relayProgram(ctx, true, "sh", "-c", "while :; do :; done")
		p, err := netns.Start("a rival of the relay", os.DevNull, netns.Command(ctx, args[0], args[1:]...))
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		started = append(started, p)
	}
	return undo, nil
}

// tick is the unit of times in /proc (USER_HZ), which is the same on all of Linux's architectures.
const procTick = time.Second / 100

// cpuOf is how long a process has run on any core, the kernel's work for it included.
func cpuOf(pid int) (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("what process %d costs: %w", pid, err)
	}
	// The second field is a name in parentheses, which may hold anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const user, system = 14 - 3, 15 - 3 // of proc(5)
	if len(fields) <= system {
		return 0, fmt.Errorf("what process %d costs: /proc is not as proc(5) has it", pid)
	}
	var ticks int64
	for _, f := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("what process %d costs: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * procTick, nil
}
