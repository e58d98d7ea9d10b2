// Run one prompt in a session of `zot daemon` from Go, with nothing but the standard library. A lost connection costs
// nothing.
//
//	go run . SESSION "PROMPT" [--approve]
//
// $ZEROCLAW_SOCKET is the daemon's socket. --approve allows every tool call that asks; without it each is rejected.
// Exit codes: 0 completed, 1 failed or lost, 2 wrong usage, 3 no daemon, 130 cancelled with Ctrl+C.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

const (
	reconnectFor = 30 * time.Second // how long a lost daemon is tried again
	settleFor    = 2 * time.Second  // how long an idle session may be silent before a prompt without a trace counts as lost
	stopping     = -32005           // the daemon is stopping and has not begun this: ask the next one
)

var errLost = errors.New("the connection was lost")

// Frame has the fields of answers and notifications that this client looks at.
type Frame struct {
	ID     int
	Method string
	Params Update
	Result struct {
		LastSeq, Epoch int
		State          string
	}
	Error *struct {
		Code    int
		Message string
	}
}

// Update is a session/update.
type Update struct {
	SessionID, Type, PromptID, Text, Name, RequestID, ArgumentsSummary, Outcome, Error string
	Prompt                                                                             *string
	RawInput                                                                           json.RawMessage
	IsError                                                                            bool
	Seq                                                                                int
}

// Run is one prompt in a session, over as many connections as it takes.
type Run struct {
	session, prompt, promptID string // by promptID we know our turn among those of others, and after a reconnect
	approve, sent, mine       bool
	opened                    bool
	cursor                    int // the number of the last update that we have handled
	epoch                     int // another one means that it is another session now
	interrupted               chan os.Signal
}

// connection is one connection of a Run.
type connection struct {
	net.Conn
	frames chan Frame // closed when the connection is lost
	calls  int
}

func connect(path string, patience time.Duration) (*connection, error) {
	deadline := time.Now().Add(patience)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		socket, err := net.Dial("unix", path)
		if err == nil {
			c := &connection{Conn: socket, frames: make(chan Frame)}
			go c.read()
			return c, nil
		}
		if time.Now().Add(pause).After(deadline) {
			return nil, err
		}
		time.Sleep(pause)
	}
}

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func (c *connection) read() {
	defer close(c.frames)
	lines := bufio.NewReader(c) // not a Scanner: that gives up on a line longer than its buffer
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var frame Frame
		if err := json.Unmarshal(line, &frame); err != nil {
			log.Fatal(err)
		}
		c.frames <- frame
	}
}

// send writes a call and returns its id. A broken connection shows when it is read.
func (c *connection) send(method string, params map[string]any) int {
	c.calls++
	call := map[string]any{"jsonrpc": "2.0", "id": c.calls, "method": method, "params": params}
	_ = json.NewEncoder(c).Encode(call) // one line, one write, LF at its end
	return c.calls
}

// result runs the prompt to its end and returns its turn_complete.
func (r *Run) result(path string) (*Update, error) {
	c, err := connect(path, 0)
	for err == nil {
		var done *Update
		done, err = r.follow(c)
		c.Close()
		for range c.frames { // let the reader end
		}
		if !errors.Is(err, errLost) {
			return done, err
		}
		c, err = connect(path, reconnectFor)
	}
	return nil, fmt.Errorf("no daemon: %w", err)
}

// follow opens or resumes the session on one connection, sends the prompt once, and handles what comes.
func (r *Run) follow(c *connection) (*Update, error) {
	var settled <-chan time.Time // set while an idle session has no trace of our prompt
	open, prompt := 0, 0
	c.send("initialize", map[string]any{"protocolVersion": 1, "client": map[string]any{"name": "example-go"}})
	if !r.opened {
		directory, _ := os.Getwd()
		open = c.send("session/new", map[string]any{"agentAlias": "default", "sessionId": r.session, "cwd": directory})
	} else {
		open = c.send("session/attach", map[string]any{"sessionId": r.session, "after": r.cursor})
	}
	for {
		select {
		case <-r.interrupted:
			c.send("session/cancel", map[string]any{"sessionId": r.session})
		case <-settled:
			return nil, errors.New("the daemon never got the prompt; send it again")
		case frame, ok := <-c.frames:
			switch {
			case !ok:
				return nil, errLost
			case frame.Method == "session/update" && frame.Params.SessionID == r.session:
				if settled != nil {
					settled = time.After(settleFor)
				}
				if r.handle(c, frame.Params) {
					return &frame.Params, nil
				}
			case frame.Error != nil && frame.ID == prompt && frame.Error.Code == stopping:
				r.sent = false
				time.Sleep(500 * time.Millisecond)
				return nil, errLost
			case frame.Error != nil && (frame.ID <= open || frame.ID == prompt):
				return nil, errors.New(frame.Error.Message)
			case frame.ID == open && frame.Method == "":
				if !r.opened {
					r.opened, r.cursor, r.epoch = true, frame.Result.LastSeq, frame.Result.Epoch
				} else if r.epoch != frame.Result.Epoch {
					return nil, errors.New("the session is another one now: begin again")
				} else if r.sent && frame.Result.State == "idle" {
					settled = time.After(settleFor)
				}
				if !r.sent {
					r.sent = true
					params := map[string]any{"sessionId": r.session, "prompt": r.prompt, "promptId": r.promptID}
					prompt = c.send("session/prompt", params)
				}
			}
		}
	}
}

// handle shows an update and remembers its number. It returns whether our turn is over.
func (r *Run) handle(c *connection, update Update) bool {
	if update.Type == "state" && update.Prompt != nil {
		r.mine = update.PromptID == r.promptID
	}
	if r.mine {
		switch update.Type {
		case "agent_message_chunk":
			fmt.Print(update.Text)
		case "tool_call":
			fmt.Println()
			log.Printf("[%s] %s", update.Name, update.RawInput)
		case "tool_result":
			log.Print(map[bool]string{true: "[failed]", false: "[ok]"}[update.IsError])
		case "approval_request":
			log.Printf("[approve?] %s", update.ArgumentsSummary)
			decision := map[bool]string{true: "allow_once", false: "reject"}[r.approve]
			params := map[string]any{"sessionId": r.session, "requestId": update.RequestID, "decision": decision}
			c.send("session/approve", params) // an error means that another client was first
		}
	}
	if update.Seq == 0 {
		return false // it is not on record: the answer to the prompt counts
	}
	r.cursor = update.Seq
	return update.Type == "turn_complete" && update.PromptID == r.promptID
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Print(`usage: go run . SESSION "PROMPT" [--approve]`)
		os.Exit(2)
	}
	path := os.Getenv("ZEROCLAW_SOCKET")
	if path == "" {
		home, _ := os.UserHomeDir()
		path = filepath.Join(home, ".zeroclaw", "data", "daemon.sock")
	}
	name := make([]byte, 16)
	_, _ = rand.Read(name)
	run := &Run{session: os.Args[1], prompt: os.Args[2], promptID: hex.EncodeToString(name), interrupted: make(chan os.Signal, 1)}
	run.approve = len(os.Args) > 3 && os.Args[3] == "--approve"
	signal.Notify(run.interrupted, os.Interrupt)
	done, err := run.result(path)
	switch {
	case err != nil && errors.As(err, new(*net.OpError)):
		log.Print(err)
		os.Exit(3)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println()
	if done.Error != "" {
		log.Print(done.Error)
	}
	os.Exit(map[string]int{"completed": 0, "cancelled": 130, "failed": 1}[done.Outcome])
}
