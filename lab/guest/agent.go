package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// A request asks the agent to run a program, or to stop one.
type request struct {
	ID    int      `json:"id"`
	Args  []string `json:"args,omitempty"`
	Env   []string `json:"env,omitempty"`
	Stdin []byte   `json:"stdin,omitempty"`
	Stop  bool     `json:"stop,omitempty"`
}

// An answer says what came of it.
type answer struct {
	ID     int    `json:"id"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Error  string `json:"error,omitempty"` // "": it ended with exit code 0
}

// Serve runs in the guest: it does what is asked for by the port until that closes. Then the guest turns itself off.
func Serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	defer port.Close()
	return serve(port)
}

// openPort finds the port by the name that QEMU gave it (virtio 1.2, section 5.3.6).
func openPort() (*os.File, error) {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, file := range names {
		if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == portName {
			return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(file))), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("there is no serial port %s: this is no guest", portName)
}

// serve is Serve with any port.
func serve(port io.ReadWriter) error {
	var mu sync.Mutex // guards what follows, and writing
	stops := map[int]context.CancelFunc{}
	var running sync.WaitGroup
	defer running.Wait()
	all, stopAll := context.WithCancel(context.Background())
	defer stopAll()
	d := json.NewDecoder(port)
	for {
		var r request
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		mu.Lock()
		if r.Stop {
			if stop := stops[r.ID]; stop != nil {
				stop()
			}
			mu.Unlock()
			continue
		}
		ctx, stop := context.WithCancel(all)
		stops[r.ID] = stop
		mu.Unlock()
		running.Go(func() {
			a := run(ctx, r)
			stop()
			mu.Lock()
			defer mu.Unlock()
			delete(stops, r.ID)
			if b, err := json.Marshal(a); err == nil {
				port.Write(append(b, '\n'))
			}
		})
	}
}

func run(ctx context.Context, r request) answer {
	a := answer{ID: r.ID}
	if len(r.Args) == 0 {
		a.Error = "no program is named"
		return a
	}
	cmd := exec.CommandContext(ctx, r.Args[0], r.Args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.Stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), r.Env...)
	if err := cmd.Run(); err != nil {
		a.Error = err.Error()
	}
	a.Stdout, a.Stderr = stdout.Bytes(), stderr.Bytes()
	return a
}
