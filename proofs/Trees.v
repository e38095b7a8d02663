(* Trees.v - the token tree of a round: acceptance, descriptor, GDN program (core/engine/tree.h).

   A tree of n rows is the list of the parents of rows 1 .. n-1, each an earlier row; row 0 is the
   last committed token. `accept` walks as tree_accept does: from row 0 to the child that carries
   the target's own token, as long as there is one. Theorems about it hold for trees of any size.
   Descriptor and program are decided for each of the trees of up to 8 rows (5,040 of 8), which
   `trees` lists completely. The same functions print a table, and the C functions must print the
   same (proofs/tree_table.c): what is proved here is proved of what the engine runs. *)

Require Import ZArith List Bool Lia Arith.
Import ListNotations.

Definition tree := list nat.
Definition rows (t : tree) : nat := S (length t).
Definition parent (t : tree) (row : nat) : nat := nth (row - 1) t 0.
Definition legal (t : tree) : Prop := forall row, 1 <= row < rows t -> parent t row < row.

Definition is_legal (t : tree) : bool :=
  forallb (fun row => parent t row <? row) (seq 1 (length t)).
Lemma is_legal_sound : forall t, is_legal t = true -> legal t.
Proof.
  intros t decided row range. unfold is_legal in decided. rewrite forallb_forall in decided.
  apply Nat.ltb_lt, decided, in_seq. unfold rows in range. lia.
Qed.

(* ---- acceptance *)

Section Acceptance.
  Variables (t : tree) (token sampled : nat -> Z).

  Definition is_child (row child : nat) : bool :=
    (parent t child =? row) && (token child =? sampled row)%Z.
  Definition next (row : nat) : option nat :=
    find (is_child row) (seq (S row) (rows t - S row)).

  Fixpoint walk (fuel row : nat) : list nat :=
    match fuel with
    | O => []
    | S fuel =>
        row :: match next row with
               | Some child => walk fuel child
               | None => []
               end
    end.
  Definition accept : list nat := walk (rows t) 0.

  (* From row 0 from parent to child, and each child carries what the target sampled. *)
  Inductive matching : nat -> list nat -> Prop :=
    | matching_one : forall row, matching row [row]
    | matching_more : forall row child rest, row < child < rows t -> parent t child = row ->
        token child = sampled row -> matching child rest -> matching row (row :: rest).

  (* Siblings differ: tree_refusal sees to it. *)
  Definition siblings_differ : Prop := forall a b, 1 <= a < rows t -> 1 <= b < rows t ->
    parent t a = parent t b -> token a = token b -> a = b.

  Lemma next_some : forall row child, next row = Some child ->
    row < child < rows t /\ parent t child = row /\ token child = sampled row.
  Proof.
    intros row child found. apply find_some in found. destruct found as [inside decided].
    apply in_seq in inside. unfold is_child in decided.
    rewrite andb_true_iff, Nat.eqb_eq, Z.eqb_eq in decided. repeat split; try tauto; lia.
  Qed.

  Lemma next_none : forall row child, next row = None -> row < child < rows t ->
    parent t child = row -> token child <> sampled row.
  Proof.
    intros row child none range is_parent same.
    apply find_none with (x := child) in none; [| apply in_seq; lia].
    unfold is_child in none. rewrite is_parent, same, Nat.eqb_refl, Z.eqb_refl in none.
    discriminate.
  Qed.

  Lemma walk_matching : forall fuel row, row < rows t -> rows t - row <= fuel ->
    matching row (walk fuel row).
  Proof.
    induction fuel as [| fuel induction]; intros row inside enough; [lia |]. simpl.
    destruct (next row) as [child |] eqn:found.
    - destruct (next_some row child found) as [range [is_parent same]].
      apply matching_more with (child := child); try assumption. apply induction; lia.
    - apply matching_one.
  Qed.

  Lemma walk_longest : siblings_differ -> forall fuel row path, row < rows t ->
    rows t - row <= fuel -> matching row path -> exists rest, walk fuel row = path ++ rest.
  Proof.
    intros differ. induction fuel as [| fuel induction]; intros row path inside enough match_path;
      [lia |].
    destruct match_path as [row | row child path range is_parent same match_rest]; simpl.
    - eexists. reflexivity.
    - destruct (next row) as [other |] eqn:found.
      + destruct (next_some row other found) as [range' [is_parent' same']].
        assert (other = child) by (apply differ; try lia; congruence). subst other.
        destruct (induction child path ltac:(lia) ltac:(lia) match_rest) as [rest ->].
        exists rest. reflexivity.
      + exfalso. apply (next_none row child found range is_parent same).
  Qed.

  (* The list reference: of all matching paths that begin at row 0, the longest. *)
  Definition longest (candidates : list (list nat)) : list nat :=
    fold_left (fun best path : list nat => if length best <? length path then path else best)
      candidates [].

  Lemma longest_in : forall candidates best,
    let found := fold_left
      (fun best path : list nat => if length best <? length path then path else best)
      candidates best in
    (found = best \/ In found candidates) /\ length best <= length found /\
    (forall path, In path candidates -> length path <= length found).
  Proof.
    induction candidates as [| path rest induction]; intro best; simpl.
    - repeat split; auto; intros _ [].
    - specialize (induction (if length best <? length path then path else best)).
      simpl in induction.
      destruct induction as [from [more all]].
      destruct (Nat.ltb_spec (length best) (length path));
        (split; [| split; [lia | intros p [<- | here]; [lia | apply all; exact here]]]);
        destruct from as [same | inside]; rewrite ?same; simpl; auto.
  Qed.

  (* Law accept_longest: acceptance gives the longest path from row 0 on which every drafted token
     is the one that the target itself sampled after the row before it; every other such path is a
     beginning of it.
     Mirrors: exl3_tree_accept, exl3_accept. *)
  Theorem accept_longest : siblings_differ ->
    matching 0 accept /\
    (forall path, matching 0 path -> exists rest, accept = path ++ rest) /\
    (forall candidates, (forall path, In path candidates -> matching 0 path) ->
       In accept candidates -> longest candidates = accept).
  Proof.
    intros differ.
    assert (all : forall path, matching 0 path -> exists rest, accept = path ++ rest).
    { intros path is_matching. apply walk_longest; unfold rows in *; try assumption; lia. }
    split; [apply walk_matching; unfold rows; lia |]. split; [exact all |].
    intros candidates are_matching inside.
    destruct (longest_in candidates []) as [from [_ most]]. fold (longest candidates) in *.
    specialize (most accept inside).
    destruct from as [none | found].
    - rewrite none in most. unfold accept in most. simpl in most. lia.
    - destruct (all _ (are_matching _ found)) as [rest split_path].
      rewrite split_path in most. rewrite app_length in most.
      assert (rest = []) by (destruct rest; [reflexivity | simpl in most; lia]).
      subst rest. rewrite app_nil_r in split_path. congruence.
  Qed.

  (* ---- cuts: a stop token, the budget, a page's end *)

  Inductive ending := More | Stop | Budget.
  Variables (stops : Z -> bool) (budget page_end : nat).

  Definition end_after (row count : nat) : ending :=
    if stops (sampled row) then Stop else if budget <=? count then Budget else More.
  Definition halts (row count : nat) : bool :=
    match end_after row count with More => page_end <=? count | _ => true end.

  (* tree_accept: one loop that walks and looks for an end. *)
  Fixpoint verdict (fuel row count : nat) : list nat * ending :=
    match fuel with
    | O => ([], More)
    | S fuel =>
        if halts row (S count) then ([row], end_after row (S count))
        else match next row with
             | Some child => let below := verdict fuel child (S count) in
                             (row :: fst below, snd below)
             | None => ([row], More)
             end
    end.

  (* The list reference: the path is there, then it is cut after the first row that ends it. *)
  Fixpoint cut (path : list nat) (count : nat) : list nat * ending :=
    match path with
    | [] => ([], More)
    | row :: rest =>
        if halts row (S count) then ([row], end_after row (S count))
        else let below := cut rest (S count) in (row :: fst below, snd below)
    end.

  (* Law accept_cut: with stop tokens, a budget and a page's end, what is committed is the accepted
     path cut after the first row at which one of them says so, and the end it reports is that one.
     Mirrors: exl3_tree_accept, exl3_accept. No hypotheses. *)
  Theorem accept_cut : forall fuel row count, verdict fuel row count = cut (walk fuel row) count.
  Proof.
    induction fuel as [| fuel same]; intros row count; simpl; [reflexivity |].
    destruct (halts row (S count)) eqn:halted; [reflexivity |].
    destruct (next row) as [child |]; [rewrite same; reflexivity |].
    reflexivity.
  Qed.

  (* Law cut_explained: a verdict keeps a beginning of the path and goes on until a cut: no row
     before its last one halts, and its last does, or the path ends there.
     Mirrors: exl3_accept, exl3_round. No hypotheses. *)
  Theorem cut_explained : forall path count, exists rest,
    path = fst (cut path count) ++ rest /\
    (forall before row after, fst (cut path count) = before ++ row :: after ->
       after <> [] -> halts row (S count + length before) = false) /\
    (rest <> [] -> exists before row, fst (cut path count) = before ++ [row] /\
       halts row (S count + length before) = true).
  Proof.
    induction path as [| row path induction]; intro count; simpl.
    - exists []. repeat split; [intros [|]; discriminate | congruence].
    - destruct (halts row (S count)) eqn:halted; simpl.
      + exists path. repeat split.
        * intros [| first before] last after same more; [| destruct before; discriminate].
          injection same as _ <-. congruence.
        * intros _. exists [], row. split; [reflexivity |]. rewrite Nat.add_0_r. exact halted.
      + destruct (induction (S count)) as [rest [whole [quiet last]]].
        exists rest. split; [f_equal; exact whole |]. split.
        * intros [| first before] middle after same more.
          -- injection same as <- _. simpl. rewrite Nat.add_0_r. exact halted.
          -- injection same as <- same. specialize (quiet before middle after same more).
             simpl in *. rewrite <- plus_n_Sm. exact quiet.
        * intro more. destruct (last more) as [before [final [same halted']]].
          exists (row :: before), final. rewrite same. split; [reflexivity |].
          simpl in *. rewrite <- plus_n_Sm. exact halted'.
  Qed.
End Acceptance.

Example accept_longest_used :=
  accept_longest [0; 0] (fun row => Z.of_nat row) (fun _ => 2%Z)
    ltac:(intros a b _ _ _ same; lia).

(* Two siblings of one token: the walk goes to the first, and a path through the second matches
   too and is no beginning of it. The hypothesis is needed, and so is tree_refusal. *)
Example siblings_needed :
  let t := [0; 0] in let token := fun _ => 7%Z in let sampled := fun _ => 7%Z in
  matching t token sampled 0 [0; 2] /\ accept t token sampled = [0; 1].
Proof.
  split; [| reflexivity].
  apply matching_more with (child := 2); try reflexivity; try (unfold rows; simpl; lia).
  apply matching_one.
Qed.

(* ---- the descriptor *)

(* A row's ancestors from row 0 on, itself last. *)
Fixpoint path_to (t : tree) (fuel row : nat) : list nat :=
  match fuel with
  | O => []
  | S fuel => match row with O => [0] | _ => path_to t fuel (parent t row) ++ [row] end
  end.
Definition path (t : tree) (row : nat) : list nat := path_to t (rows t) row.
Definition depth (t : tree) (row : nat) : nat := length (path t row) - 1.
Definition sees (t : tree) (row other : nat) : bool := existsb (Nat.eqb other) (path t row).

(* ---- the GDN program (schedules/gdn_step.lua) *)

Inductive operation := Advance | Peek | Reload | Replay.
Definition code (op : operation) : nat :=
  match op with Advance => 0 | Peek => 1 | Reload => 2 | Replay => 3 end.
Definition step := (operation * nat)%type.

Definition children (t : tree) (row : nat) : list nat :=
  filter (fun child => parent t child =? row) (seq (S row) (rows t - S row)).
Definition is_leaf (t : tree) (row : nat) : bool :=
  match children t row with [] => true | _ => false end.

(* As tree.c has it: leaves peek; then the state goes down into one inner child after the other,
   back from the state before the round in between; the last child needs no way back. *)
Fixpoint visit (t : tree) (fuel row : nat) : list step :=
  match fuel with
  | O => []
  | S fuel =>
      let inner := filter (fun child => negb (is_leaf t child)) (children t row) in
      let leaves := filter (is_leaf t) (children t row) in
      match rev (if length inner =? 0 then leaves else inner) with
      | [] => []
      | last :: _ =>
          map (fun leaf => (Peek, leaf)) (filter (fun leaf => negb (leaf =? last)) leaves) ++
          flat_map (fun child => (Advance, child) :: visit t fuel child ++
                      (Reload, 0) :: map (fun above => (Replay, above)) (path t row))
                   (filter (fun child => negb (child =? last)) inner) ++
          (Advance, last) :: visit t fuel last
      end
  end.
Definition program (t : tree) : list step := (Advance, 0) :: visit t (rows t) 0.

Definition same_rows (a b : list nat) : bool :=
  (length a =? length b) && forallb (fun pair => fst pair =? snd pair) (combine a b).

(* What the kernel does, on histories of rows instead of states: a row is moved over, or looked at,
   only where its parents' states lead to it. None: the state would be another. *)
Fixpoint emulate (t : tree) (steps : list step) (history : list nat) : option (list nat) :=
  match steps with
  | [] => Some []
  | (Reload, _) :: rest => emulate t rest []
  | (op, row) :: rest =>
      if same_rows (history ++ [row]) (path t row) && (row <? rows t) then
        match op, emulate t rest (match op with Peek => history | _ => history ++ [row] end) with
        | _, None => None
        | Replay, emitted => emitted
        | _, Some emitted => Some (row :: emitted)
        end
      else None
  end.

Definition once (emitted : list nat) (n : nat) : bool :=
  (length emitted =? n) && forallb (fun row => existsb (Nat.eqb row) emitted) (seq 0 n).

(* Words of the descriptor that hold a program: 16. *)
Definition program_most : nat := 16.

Definition described (t : tree) : bool :=
  match emulate t (program t) [] with
  | Some emitted => once emitted (rows t)
  | None => false
  end && (length (program t) <=? 14) &&
  forallb (fun row => sees t row row && sees t row 0 &&
    forallb (fun other => (negb (sees t row other)) || (other <=? row)) (seq 0 (rows t)) &&
    match row with
    | O => depth t row =? 0
    | _ => (depth t row =? S (depth t (parent t row))) &&
           same_rows (path t row) (path t (parent t row) ++ [row])
    end) (seq 0 (rows t)).

(* All trees of n + 1 rows. *)
Fixpoint trees (n : nat) : list tree :=
  match n with
  | O => [[]]
  | S n => flat_map (fun t => map (fun p => t ++ [p]) (seq 0 (S n))) (trees n)
  end.

Lemma trees_complete : forall n t, length t = n -> legal t -> In t (trees n).
Proof.
  induction n as [| n induction]; intros t size legal_t.
  - destruct t; [left; reflexivity | discriminate].
  - destruct (exists_last (l := t)) as [init [p split_tree]]; [destruct t; discriminate |].
    subst t. rewrite app_length in size. simpl in size.
    cbn [trees]. apply in_flat_map. exists init. split.
    + apply induction; [lia |]. intros row range. unfold rows in *.
      specialize (legal_t row). unfold rows, parent in *. rewrite app_length in legal_t.
      simpl in legal_t. rewrite app_nth1 in legal_t by lia. apply legal_t. lia.
    + apply in_map_iff. exists p. split; [reflexivity |]. apply in_seq.
      specialize (legal_t (S n)). unfold rows, parent in legal_t.
      rewrite app_length in legal_t. simpl in legal_t.
      rewrite app_nth2 in legal_t by lia.
      replace (n - 0 - length init) with 0 in legal_t by lia. simpl in legal_t.
      specialize (legal_t ltac:(lia)). lia.
Qed.

Lemma all_described : forallb (fun n => forallb described (trees n)) (seq 0 8) = true.
Proof. vm_cast_no_check (eq_refl true). Qed.

(* Law program_sound: for every tree of up to 8 rows the GDN program emits each row once, from the
   state that the row's own ancestors lead to and no other, in at most 14 steps; depths and
   ancestors in the descriptor are those of the parents, and one more.
   Mirrors: gdn_tree, attn_tree, tree_desc_agree. *)
Theorem program_sound : forall t, legal t -> rows t <= 8 ->
  (exists emitted, emulate t (program t) [] = Some emitted /\ once emitted (rows t) = true) /\
  length (program t) <= 14 /\
  (forall row, 1 <= row < rows t -> depth t row = S (depth t (parent t row))).
Proof.
  intros t legal_t small.
  assert (decided : described t = true).
  { pose proof all_described as all. rewrite forallb_forall in all.
    specialize (all (length t)). rewrite in_seq in all.
    unfold rows in small. specialize (all ltac:(lia)). rewrite forallb_forall in all.
    apply all, trees_complete; [reflexivity | exact legal_t]. }
  unfold described in decided. rewrite !andb_true_iff in decided.
  destruct decided as [[runs short] each].
  split; [| split].
  - destruct (emulate t (program t) []) as [emitted |]; [| discriminate].
    exists emitted. split; [reflexivity | exact runs].
  - apply Nat.leb_le. exact short.
  - intros row range. rewrite forallb_forall in each. specialize (each row).
    rewrite in_seq in each. specialize (each ltac:(lia)).
    rewrite !andb_true_iff in each. destruct each as [_ last].
    destruct row as [| row]; [lia |]. rewrite andb_true_iff in last. apply Nat.eqb_eq. tauto.
Qed.

(* ---- what the program does to states *)

Lemma skipn_twice : forall (A : Type) b a (list : list A),
  skipn a (skipn b list) = skipn (a + b) list.
Proof.
  induction b as [| b same]; intros a list; [rewrite Nat.add_0_r; reflexivity |].
  rewrite <- plus_n_Sm. destruct list as [| first list]; [rewrite !skipn_nil; reflexivity |].
  apply same.
Qed.

Lemma same_rows_sound : forall a b, same_rows a b = true -> a = b.
Proof.
  induction a as [| x a same]; intros [| y b] decided; unfold same_rows in decided;
    simpl in decided; try discriminate; [reflexivity |].
  rewrite !andb_true_iff in decided. destruct decided as [size [first rest]].
  apply Nat.eqb_eq in first. f_equal; [exact first |]. apply same. unfold same_rows.
  rewrite rest, andb_true_r. exact size.
Qed.

Section States.
  Variables (state output : Type).
  Variable move : state -> nat -> state.    (* the recurrence over a row *)
  Variable emit : state -> nat -> output.   (* a row's output, from the state before it *)
  Variable before : state.                  (* the state before the round *)

  (* What the kernel does (templates/gdn_step.cu). *)
  Fixpoint run (steps : list step) (now : state) : list (nat * output) :=
    match steps with
    | [] => []
    | (Advance, row) :: rest => (row, emit now row) :: run rest (move now row)
    | (Peek, row) :: rest => (row, emit now row) :: run rest now
    | (Reload, _) :: rest => run rest before
    | (Replay, row) :: rest => run rest (move now row)
    end.

  (* A row's output in plain decoding: its ancestors, one after the other, then the row. *)
  Definition plain_output (t : tree) (row : nat) : output :=
    emit (fold_left move (removelast (path t row)) before) row.

  Lemma run_plain : forall t steps history emitted, emulate t steps history = Some emitted ->
    run steps (fold_left move history before) = map (fun row => (row, plain_output t row)) emitted.
  Proof.
    intros t. induction steps as [| [op row] steps induction]; intros history emitted sound.
    - injection sound as <-. reflexivity.
    - assert (own : same_rows (history ++ [row]) (path t row) = true ->
        fold_left move (removelast (path t row)) before = fold_left move history before).
      { intro same. apply same_rows_sound in same. rewrite <- same, removelast_last. reflexivity. }
      assert (moved : fold_left move (history ++ [row]) before =
        move (fold_left move history before) row) by (rewrite fold_left_app; reflexivity).
      destruct op; cbn [emulate run] in *;
        try (destruct (same_rows (history ++ [row]) (path t row) && (row <? rows t)) eqn:checked;
             [| discriminate]; apply andb_true_iff in checked; destruct checked as [same _];
             specialize (own same)).
      + destruct (emulate t steps (history ++ [row])) as [rest |] eqn:later; [| discriminate].
        injection sound as <-. cbn [map]. unfold plain_output at 1. rewrite own. f_equal.
        rewrite <- moved. apply induction. exact later.
      + destruct (emulate t steps history) as [rest |] eqn:later; [| discriminate].
        injection sound as <-. cbn [map]. unfold plain_output at 1. rewrite own. f_equal.
        apply induction. exact later.
      + apply (induction []). exact sound.
      + rewrite <- moved. apply induction.
        destruct (emulate t steps (history ++ [row])); [exact sound | discriminate].
  Qed.

  (* Law program_states: whatever the state is and however a row moves it, the program of a tree of
     up to 8 rows gives each row, once, the output that plain decoding gives it after its own
     ancestors: no other branch of the tree shows.
     Mirrors: gdn_tree, gdn_fast. *)
  Theorem program_states : forall t, legal t -> rows t <= 8 ->
    exists emitted, once emitted (rows t) = true /\
      run (program t) before = map (fun row => (row, plain_output t row)) emitted.
  Proof.
    intros t legal_t small.
    destruct (program_sound t legal_t small) as [[emitted [sound all]] _].
    exists emitted. split; [exact all |]. apply (run_plain t (program t) []). exact sound.
  Qed.

  (* Law rounds_state: a commit that replays the accepted rows leaves the state of one uninterrupted
     scan, wherever rounds were cut; and the window of the last n inputs is that of all of them.
     Mirrors: gdn_rounds, gdn_replay. No hypotheses. *)
  Theorem rounds_state : forall (input : Type) n (window first second : list input) path path',
    fold_left move path' (fold_left move path before) = fold_left move (path ++ path') before /\
    let last_of list := skipn (length list - n) list in
    last_of (last_of (window ++ first) ++ second) = last_of (window ++ first ++ second).
  Proof.
    intros input n window first second path path'. split; [symmetry; apply fold_left_app |].
    cbn zeta. rewrite (app_assoc window). set (all := window ++ first). clearbody all.
    destruct (le_lt_dec n (length all)) as [full | short].
    - replace (length (all ++ second) - n) with (length second + (length all - n))
        by (rewrite app_length; lia).
      rewrite <- skipn_twice, (skipn_app (length all - n) all).
      replace (length all - n - length all) with 0 by lia. cbn [skipn].
      f_equal. rewrite app_length, skipn_length. lia.
    - replace (length all - n) with 0 by lia. reflexivity.
  Qed.
End States.

Example program_states_used := program_states (list nat) (list nat) (fun s row => s ++ [row])
  (fun s row => s ++ [row]) [] [0; 0; 1; 2] (is_legal_sound [0; 0; 1; 2] eq_refl)
  (proj1 (Nat.leb_le 5 8) eq_refl).

(* There are 5,040 trees of 8 rows. *)
Example trees_count : Z.of_nat (length (trees 7)) = 5040%Z.
Proof. reflexivity. Qed.

Example program_sound_used := program_sound [0; 0; 1; 2]
  (is_legal_sound [0; 0; 1; 2] eq_refl) (proj1 (Nat.leb_le 5 8) eq_refl).

(* A program that forgets a reload goes down into a second branch from the first one's state. *)
Example reload_needed : let t := [0; 0; 1; 2] in
  emulate t (program t) [] <> None /\
  emulate t (filter (fun s => match fst s with Reload => false | _ => true end) (program t)) []
    = None.
Proof. split; [discriminate | reflexivity]. Qed.

(* What a schedule exports of the program: its operations' codes and the words there are. *)
Definition program_codes (codes : list nat) (most : nat) : bool :=
  same_rows codes (map code [Advance; Peek; Reload; Replay]) && (most =? program_most).
