(* Speculation.v - a draft changes no token.

   `next` is the target's own token after a prefix: the greedy one, or the one sampled from the
   prefix's logits with the random number of (seed, position); penalties see the prefix too. Plain
   decoding appends it until a stop token comes or the budget is used up.

   A round proposes a tree below the last token, computes all rows in one pass, accepts
   (core/engine/tree.c, Trees.v), and emits what the target sampled after each accepted row. The one
   hypothesis about the pass is the row law: what it samples after a row depends on the row's own
   prefix alone. That is what the kernels promise and what tests/engine/test_forward.c,
   test_speculation.c and the recorded digests hold them to. Everything else is proved: any drafter,
   any legal trees, stop tokens, budget and page ends. *)

Require Import ZArith List Bool Lia Arith.
From Elpis Require Import Trees.
Import ListNotations.

Definition prefix := list Z.

(* A proposal: a tree and the tokens of its rows. *)
Definition proposal := (tree * (nat -> Z))%type.

(* The prefix of a row: what is committed, and the row's drafted ancestors and itself. Row 0 is the
   last committed token. *)
Definition row_prefix (p : prefix) (d : proposal) (row : nat) : prefix :=
  p ++ map (snd d) (tl (path (fst d) row)).

(* ---- paths *)

Lemma path_to_enough : forall t, legal t -> forall row fuel, row < rows t -> row < fuel ->
  path_to t fuel row = path t row.
Proof.
  intros t is_legal.
  assert (two : forall row, row < rows t -> forall fuel fuel', row < fuel -> row < fuel' ->
    path_to t fuel row = path_to t fuel' row).
  { intro row. induction row as [row induction] using lt_wf_ind.
    intros inside [| fuel] [| fuel'] enough enough'; try lia. simpl.
    destruct row as [| row]; [reflexivity |]. f_equal.
    specialize (is_legal (S row) ltac:(lia)). apply induction; lia. }
  intros row fuel inside enough. apply two; unfold rows in *; lia.
Qed.

Lemma path_child : forall t row, legal t -> 1 <= row < rows t ->
  path t row = path t (parent t row) ++ [row].
Proof.
  intros t row is_legal range. unfold path at 1. unfold rows at 1. simpl.
  destruct row as [| row]; [lia |]. f_equal.
  pose proof (is_legal (S row) range). apply path_to_enough; unfold rows in *; try assumption; lia.
Qed.

Lemma path_root : forall t, path t 0 = [0].
Proof. reflexivity. Qed.

Lemma path_some : forall t row, legal t -> row < rows t -> path t row <> [].
Proof.
  intros t row is_legal inside. destruct row as [| row]; [discriminate |].
  rewrite path_child by (assumption || lia). destruct (path t (parent t (S row))); discriminate.
Qed.

Lemma prefix_child : forall p d row, legal (fst d) -> 1 <= row < rows (fst d) ->
  row_prefix p d row = row_prefix p d (parent (fst d) row) ++ [snd d row].
Proof.
  intros p [t token] row is_legal range. unfold row_prefix. simpl fst in *. simpl snd.
  rewrite path_child by assumption.
  assert (inside : parent t row < rows t) by (specialize (is_legal row range); lia).
  pose proof (path_some t (parent t row) is_legal inside) as some.
  destruct (path t (parent t row)) as [| first rest]; [congruence |]. simpl.
  rewrite map_app, app_assoc. reflexivity.
Qed.

(* ---- rounds *)

Section Rounds.
  Variable next : prefix -> Z.
  Variable stops : Z -> bool.

  (* Plain decoding: one token at a time. *)
  Fixpoint plain (budget : nat) (p : prefix) : list Z :=
    match budget with
    | O => []
    | S budget => next p :: if stops (next p) then [] else plain budget (p ++ [next p])
    end.

  (* What a pass over a proposal samples after each row. *)
  Variable pass : prefix -> proposal -> nat -> Z.
  Definition row_law : Prop := forall p d row, legal (fst d) -> row < rows (fst d) ->
    pass p d row = next (row_prefix p d row).

  (* The tokens that a round emits, and whether it ends the reply. *)
  Definition round (p : prefix) (d : proposal) (budget page_end : nat) : list Z * ending :=
    let found := verdict (fst d) (snd d) (pass p d) stops budget page_end (rows (fst d)) 0 0 in
    (map (pass p d) (fst found), snd found).

  (* Any drafter: its proposal may depend on everything that is committed; so may page ends. *)
  Variable draft : prefix -> proposal.
  Variable page_end : prefix -> nat.
  Fixpoint speculate (most budget : nat) (p : prefix) : list Z * ending :=
    match most with
    | O => ([], More)
    | S most =>
        let now := round p (draft p) budget (page_end p) in
        match snd now with
        | More => let later := speculate most (budget - length (fst now)) (p ++ fst now) in
                  (fst now ++ fst later, snd later)
        | _ => now
        end
    end.

  (* Plain decoding that has emitted `count` tokens from `p`, and its budget behind them. *)
  Lemma verdict_plain : row_law -> forall p d budget page_end, legal (fst d) ->
    forall fuel row count, rows (fst d) - row <= fuel -> row < rows (fst d) -> count < budget ->
    let found := verdict (fst d) (snd d) (pass p d) stops budget page_end fuel row count in
    let emitted := map (pass p d) (fst found) in
    emitted <> [] /\
    length emitted <= budget - count /\
    match snd found with
    | More => length emitted < budget - count /\
        plain (budget - count) (row_prefix p d row) =
        emitted ++ plain (budget - count - length emitted) (row_prefix p d row ++ emitted)
    | _ => plain (budget - count) (row_prefix p d row) = emitted
    end.
  Proof.
    intros law p d budget page is_legal. induction fuel as [| fuel induction];
      intros row count enough inside open; [lia |].
    cbn [verdict].
    assert (own : pass p d row = next (row_prefix p d row)) by (apply law; assumption).
    destruct (budget - count) as [| left] eqn:remaining; [lia |].
    unfold halts, end_after.
    destruct (stops (pass p d row)) eqn:stopped.
    - cbn. rewrite own in stopped. rewrite own, stopped. repeat split; try discriminate; lia.
    - destruct (Nat.leb_spec budget (S count)) as [used | more].
      + cbn. assert (left = 0) by lia. subst left. rewrite own in stopped. rewrite own, stopped.
        repeat split; try discriminate; lia.
      + assert (left_is : budget - S count = left) by lia.
        rewrite own in stopped.
        destruct (page <=? S count).
        * cbn. rewrite own, stopped. repeat split; try discriminate; try lia.
          rewrite Nat.sub_0_r. reflexivity.
        * destruct (Trees.next (fst d) (snd d) (pass p d) row) as [child |] eqn:found.
          -- destruct (next_some _ _ _ _ _ found) as [range [is_parent same]].
             specialize (induction child (S count) ltac:(lia) ltac:(lia) ltac:(lia)).
             cbn zeta in induction. cbn [fst snd map length app].
             destruct induction as [some [short after]]. rewrite left_is in *.
             assert (grown :
               row_prefix p d child = row_prefix p d row ++ [next (row_prefix p d row)]).
             { rewrite prefix_child by (assumption || lia). rewrite is_parent, same, own.
               reflexivity. }
             rewrite grown in after.
             split; [discriminate |]. split; [lia |].
             destruct (snd (verdict (fst d) (snd d) (pass p d) stops budget page fuel child
               (S count))).
             ++ destruct after as [less rest]. split; [lia |].
                cbn [plain]. rewrite own, stopped. f_equal. rewrite rest.
                rewrite <- app_assoc. reflexivity.
             ++ cbn [plain]. rewrite own, stopped. f_equal. exact after.
             ++ cbn [plain]. rewrite own, stopped. f_equal. exact after.
          -- cbn. rewrite own, stopped. repeat split; try discriminate; try lia.
             rewrite Nat.sub_0_r. reflexivity.
  Qed.

  (* Law round_plain: a round over any legal tree emits what plain decoding emits next, at least one
     token and at most the budget, and ends the reply only where plain decoding ends: at a stop
     token or with the budget. A page's end cuts the round and nothing else.
     Mirrors: spec_inv_tree, exl3_round. *)
  Theorem round_plain : row_law -> forall p d budget page_end, legal (fst d) -> 1 <= budget ->
    let now := round p d budget page_end in
    1 <= length (fst now) <= budget /\
    match snd now with
    | More => length (fst now) < budget /\
        plain budget p = fst now ++ plain (budget - length (fst now)) (p ++ fst now)
    | _ => plain budget p = fst now
    end.
  Proof.
    intros law p d budget page is_legal some.
    pose proof (verdict_plain law p d budget page is_legal (rows (fst d)) 0 0 ltac:(lia)
      ltac:(unfold rows; lia) ltac:(lia)) as found.
    cbn zeta in found. rewrite Nat.sub_0_r in found.
    assert (start : row_prefix p d 0 = p) by (unfold row_prefix; cbn; apply app_nil_r).
    rewrite start in found. unfold round. cbn [fst snd].
    destruct found as [emits [short same]].
    split.
    - destruct (map _ _) as [| token rest]; [congruence |]. cbn [length] in *. lia.
    - destruct (snd _); exact same.
  Qed.

  (* Law speculation: whatever is drafted, chain or tree, in every round anew, the tokens that come
     out are those of plain decoding, all of them and no other, to the stop token or the budget.
     Mirrors: spec_inv, spec_inv_tree, rinv. *)
  Theorem speculation : row_law -> (forall p, legal (fst (draft p))) ->
    forall most budget p, 1 <= budget -> budget <= most ->
    fst (speculate most budget p) = plain budget p.
  Proof.
    intros law legal_draft. induction most as [| most induction]; intros budget p some enough;
      [lia |].
    cbn [speculate].
    destruct (round_plain law p (draft p) budget (page_end p) (legal_draft p) some) as [size same].
    destruct (snd (round p (draft p) budget (page_end p))); [| symmetry; exact same ..].
    destruct same as [less same]. cbn [fst]. rewrite same. f_equal. apply induction; lia.
  Qed.

  (* Law rounds_prefix: stopped after any number of rounds, what has come out is a beginning of
     plain decoding.
     Mirrors: spec_inv_tree. *)
  Theorem rounds_prefix : row_law -> (forall p, legal (fst (draft p))) ->
    forall most budget p, 1 <= budget ->
    exists rest, plain budget p = fst (speculate most budget p) ++ rest.
  Proof.
    intros law legal_draft. induction most as [| most induction]; intros budget p some;
      [exists (plain budget p); reflexivity |].
    cbn [speculate].
    destruct (round_plain law p (draft p) budget (page_end p) (legal_draft p) some) as [size same].
    destruct (snd (round p (draft p) budget (page_end p)));
      [| exists []; rewrite app_nil_r; exact same ..].
    destruct same as [less same]. cbn [fst].
    destruct (induction (budget - length (fst (round p (draft p) budget (page_end p))))
      (p ++ fst (round p (draft p) budget (page_end p))) ltac:(lia)) as [rest later].
    exists rest. rewrite same, later, app_assoc. reflexivity.
  Qed.
End Rounds.

(* Law two_drafts: two drafters, however different their trees, give the same reply.
   Mirrors: spec_inv. *)
Theorem two_drafts : forall next stops pass draft draft' page_end page_end' budget p,
  row_law next pass -> (forall p, legal (fst (draft p))) -> (forall p, legal (fst (draft' p))) ->
  1 <= budget ->
  fst (speculate stops pass draft page_end budget budget p) =
  fst (speculate stops pass draft' page_end' budget budget p).
Proof.
  intros next stops pass draft draft' page_end page_end' budget p law one two some.
  rewrite !(speculation next) by (assumption || lia). reflexivity.
Qed.

(* ---- sampling *)

Section Sampling.
  Variables (logits random : Type) (choose : logits -> random -> Z).
  Variable draw : Z -> nat -> random.                    (* of seed and position *)
  Variable model : prefix -> logits.                  (* plain decoding's logits after a prefix *)
  Variable row_logits : prefix -> proposal -> nat -> logits.  (* a pass's logits of a row *)
  Variable seed : Z.

  (* A row's position: those of the committed tokens, and its depth in the tree. *)
  Definition position (p : prefix) (d : proposal) (row : nat) : nat := length p + depth (fst d) row.

  (* Law sampled_rows: where the logits of a row depend on its prefix alone, and the random number
     on seed and position alone, so does the sampled token: sampling keeps the row law.
     Mirrors: rowinv_served. *)
  Theorem sampled_rows :
    (forall p d row, legal (fst d) -> row < rows (fst d) ->
       row_logits p d row = model (row_prefix p d row)) ->
    row_law (fun p => choose (model p) (draw seed (length p)))
            (fun p d row => choose (row_logits p d row) (draw seed (position p d row))).
  Proof.
    intros logits_law p d row is_legal inside. rewrite logits_law by assumption. f_equal. f_equal.
    unfold position, row_prefix, depth. rewrite app_length, map_length.
    pose proof (path_some (fst d) row is_legal inside) as some.
    destruct (path (fst d) row); [congruence |]. simpl. lia.
  Qed.
End Sampling.

(* ---- the check after the launch (core/engine/round.c)

   The verify is launched on a record that the draft's kernel left on the device, before the host
   has seen it. The host reads the record afterwards, derives it again from the parents and tokens
   in it, and keeps the pass only where all of it is equal; else it verifies a legal proposal of its
   own. A pass is a function: a verify writes nothing that outlives its round. *)

Section Pipeline.
  Variable next : prefix -> Z.
  Variable stops : Z -> bool.
  Variable record : Type.
  Variable same_record : record -> record -> bool.
  Hypothesis same_record_spec : forall a b, same_record a b = true -> a = b.
  Variable describe : prefix -> proposal -> record.      (* tree_describe *)
  Variable read : record -> proposal.                    (* the parents and tokens in a record *)
  Variable is_legal : proposal -> bool.                  (* tree_refusal *)
  Hypothesis is_legal_spec : forall d, is_legal d = true -> legal (fst d).
  Variable pass : prefix -> record -> nat -> Z.          (* for any record, also nonsense *)
  Hypothesis described_law : row_law next (fun p d => pass p (describe p d)).

  Definition sequential (p : prefix) (d : proposal) (budget page_end : nat) : list Z * ending :=
    round stops (fun p d => pass p (describe p d)) p d budget page_end.

  Definition keeps (p : prefix) (staged : record) : bool :=
    is_legal (read staged) && same_record (describe p (read staged)) staged.
  Definition pipelined (p : prefix) (staged : record) (own : proposal) (budget page_end : nat)
    : list Z * ending :=
    if keeps p staged
    then round stops (fun p d => pass p staged) p (read staged) budget page_end
    else sequential p own budget page_end.

  (* Law pipeline: for every record that may be there, right, wrong or nonsense, the round that
     launches first and compares after is a sequential round over a legal proposal: the one in the
     record, or the host's own.
     Mirrors: tree_pipe. *)
  Theorem pipeline : forall p staged own budget page_end, legal (fst own) ->
    exists d, legal (fst d) /\
      pipelined p staged own budget page_end = sequential p d budget page_end /\
      (d = read staged \/ d = own).
  Proof.
    intros p staged own budget page_end legal_own. unfold pipelined.
    destruct (keeps p staged) eqn:kept.
    - unfold keeps in kept. apply andb_true_iff in kept. destruct kept as [legal_read same].
      apply same_record_spec in same. exists (read staged).
      split; [apply is_legal_spec; exact legal_read |]. split; [| left; reflexivity].
      unfold sequential, round. rewrite same. reflexivity.
    - exists own. auto.
  Qed.

  (* Law pipeline_plain: so what it emits is what plain decoding emits next, for every record.
     Mirrors: tree_pipe. *)
  Theorem pipeline_plain : forall p staged own budget page_end, legal (fst own) -> 1 <= budget ->
    let now := pipelined p staged own budget page_end in
    exists rest, plain next stops budget p = fst now ++ rest.
  Proof.
    intros p staged own budget page_end legal_own some now.
    destruct (pipeline p staged own budget page_end legal_own) as [d [legal_d [same _]]].
    unfold now. rewrite same. unfold sequential.
    destruct (round_plain next stops _ described_law p d budget page_end legal_d some) as [_ found].
    destruct (snd _).
    - destruct found as [_ found]. eexists. exact found.
    - exists []. rewrite app_nil_r. exact found.
    - exists []. rewrite app_nil_r. exact found.
  Qed.
End Pipeline.

(* ---- witnesses: each hypothesis is needed *)

(* The laws say something: a target that counts, and drafts that guess right or wrong. *)
Definition counting (p : prefix) : Z := Z.of_nat (length p).
Definition honest (p : prefix) (d : proposal) (row : nat) : Z := counting (row_prefix p d row).
Definition guess (p : prefix) : proposal :=
  ([0; 0; 1], fun row => (counting p + Z.of_nat row / 2)%Z).
Lemma guess_legal : forall p, legal (fst (guess p)).
Proof. intro p. apply is_legal_sound. reflexivity. Qed.
Lemma honest_law : row_law counting honest.
Proof. intros p d row _ _. reflexivity. Qed.
Definition at_seven (token : Z) : bool := (token =? 7)%Z.

Example round_plain_used := round_plain counting at_seven honest honest_law [5%Z] (guess [5%Z]) 4 9
  (guess_legal _) ltac:(lia).
Example speculation_used :
  fst (speculate at_seven honest guess (fun _ => 2) 9 9 [5%Z]) = plain counting at_seven 9 [5%Z].
Proof. apply speculation; [exact honest_law | exact guess_legal | lia | lia]. Qed.
Example rounds_prefix_used := rounds_prefix counting at_seven honest guess (fun _ => 2) honest_law
  guess_legal 2 9 [5%Z] ltac:(lia).
Example two_drafts_used := two_drafts counting at_seven honest guess (fun _ => ([], fun _ => 0%Z))
  (fun _ => 2) (fun _ => 9) 9 [5%Z] honest_law guess_legal
  (fun _ => is_legal_sound [] eq_refl) ltac:(lia).
Example sampled_rows_used := sampled_rows Z Z Z.add (fun seed place => (seed + Z.of_nat place)%Z)
  counting honest 3%Z honest_law.
Definition same_guess (a b : proposal) : bool := false.
Example pipeline_plain_used := pipeline_plain counting at_seven proposal same_guess
  ltac:(discriminate) (fun _ d => d) (fun d => d) (fun _ => false) ltac:(discriminate) honest
  honest_law [5%Z] (guess [5%Z]) (guess [5%Z]) 4 9 (guess_legal _) ltac:(lia).
(* A record that passes the check: all that is compared here is a number. *)
Example pipeline_used := pipeline at_seven nat Nat.eqb (fun a b => proj1 (Nat.eqb_eq a b))
  (fun _ _ => 3) (fun _ => guess []) (fun d => is_legal (fst d)) (fun d => is_legal_sound (fst d))
  (fun _ _ row => Z.of_nat row) [5%Z] 3 (guess [5%Z]) 4 9 (guess_legal _).

(* A pass whose rows leak their number: two chains of different order give different replies. *)
Example row_law_needed :
  let leaks := fun (p : prefix) (d : proposal) (row : nat) => Z.of_nat row in
  let chain := fun _ : prefix => ([0], fun row : nat => 0%Z) in
  let nothing := fun _ : prefix => ([], fun row : nat => 0%Z) in
  fst (speculate (fun _ => false) leaks chain (fun _ => 9) 2 2 [5%Z]) <>
  fst (speculate (fun _ => false) leaks nothing (fun _ => 9) 2 2 [5%Z]).
Proof. vm_compute. discriminate. Qed.

(* The row law is not empty: plain decoding itself, a row at a time, has it. *)
Example row_law_holds : forall next, row_law next (fun p d row => next (row_prefix p d row)).
Proof. intros next p d row _ _. reflexivity. Qed.

(* With no budget a round still emits a token, and plain decoding none. *)
Example budget_needed : let next := fun _ : prefix => 3%Z in
  fst (round (fun _ => false) (fun p d row => next (row_prefix p d row)) [5%Z]
         ([], fun _ => 0%Z) 0 9) <> plain next (fun _ => false) 0 [5%Z].
Proof. vm_compute. discriminate. Qed.

(* A record that no one compares: what the device read is not what the host accepts by, and a token
   is emitted that plain decoding never gives. *)
Example comparison_needed :
  let next := fun p : prefix => Z.of_nat (length p) in
  let honest := ([0], fun _ : nat => 1%Z) : proposal in
  let wrong := fun (p : prefix) (row : nat) => Z.of_nat (length p + 3 * row) in
  fst (round (fun _ => false) (fun p _ => wrong p) [5%Z] honest 4 9) = [1%Z; 4%Z] /\
  plain next (fun _ => false) 2 [5%Z] = [1%Z; 2%Z].
Proof. split; reflexivity. Qed.
